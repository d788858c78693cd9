// Whether the client of a request is still there.
#pragma once

#include <string>

namespace unpack::server {

// Looks the connection up by its ports among our own sockets: the HTTP library shows handlers no
// socket in its older versions.
class ClientConnection {
 public:
  ClientConnection(const std::string& remote_address, int remote_port, int local_port);
  bool closed()
      const;  // false where the socket was not found: the request is then answered in any case

 private:
  int socket_ = -1;
};

}  // namespace unpack::server
