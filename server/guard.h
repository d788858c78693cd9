// Who may talk to the server: against DNS rebinding and requests that another site's page sends.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace unpack::server {

class Guard {
 public:
  explicit Guard(std::vector<std::string> names) : names_(std::move(names)) {}

  // A page of a rebound DNS name carries that name; localhost, plain addresses and the names we
  // were given cannot be rebound.
  bool host_allowed(std::string_view host_header) const;
  // Browsers send an Origin with every POST: it has to be our own page's. Programs send none.
  bool origin_allowed(std::string_view origin_header, std::string_view host_header) const;

 private:
  std::vector<std::string> names_;
};

}  // namespace unpack::server
