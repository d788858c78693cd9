#include "connection.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

namespace unpack::server {
namespace {

struct Endpoint {
  std::string address;
  int port = -1;
};

Endpoint endpoint(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return {text, ntohs(v4.sin_port)};
  }
  if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    return {text, ntohs(v6.sin6_port)};
  }
  return {};
}

bool joins(int socket, const std::string& remote_address, int remote_port, int local_port) {
  sockaddr_storage remote{}, local{};
  socklen_t remote_size = sizeof remote, local_size = sizeof local;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&remote), &remote_size) != 0) return false;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&local), &local_size) != 0) return false;
  const Endpoint peer = endpoint(remote);
  return peer.port == remote_port && endpoint(local).port == local_port &&
         peer.address == remote_address;
}

}  // namespace

ClientConnection::ClientConnection(const std::string& remote_address, int remote_port,
                                   int local_port) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/dev/fd"), closedir);
  if (!folder) return;
  while (const dirent* entry = readdir(folder.get())) {
    const int candidate =
        std::atoi(entry->d_name);  // "." and ".." become 0, which is no connection of ours
    if (candidate > 2 && joins(candidate, remote_address, remote_port, local_port)) {
      socket_ = candidate;
      return;
    }
  }
}

bool ClientConnection::closed() const {
  if (socket_ < 0) return false;
  pollfd watched{socket_, POLLIN, 0};
  if (poll(&watched, 1, 0) <= 0) return false;
  if (watched.revents & (POLLERR | POLLHUP | POLLNVAL)) return true;
  char byte = 0;
  const ssize_t got = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace unpack::server
