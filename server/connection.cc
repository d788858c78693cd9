#include "connection.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "unpack/error.h"

namespace unpack::server {
namespace {

// Where a system has no such flag, SIGPIPE is ignored (cpp-httplib sees to that).
#ifdef MSG_NOSIGNAL
constexpr int kQuietly = MSG_NOSIGNAL;
#else
constexpr int kQuietly = 0;
#endif

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

// Calls visit(socket, client) for every accepted connection of ours at this port until it returns
// false. A client is its address and port.
template <class Visit>
void each_connection(int local_port, const Visit& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/dev/fd"), closedir);
  if (!folder) return;
  while (const dirent* entry = readdir(folder.get())) {
    const int socket =
        std::atoi(entry->d_name);  // "." and ".." become 0, which is no connection of ours
    sockaddr_storage remote{}, local{};
    socklen_t remote_size = sizeof remote, local_size = sizeof local;
    if (socket <= 2 ||
        getpeername(socket, reinterpret_cast<sockaddr*>(&remote), &remote_size) != 0 ||
        getsockname(socket, reinterpret_cast<sockaddr*>(&local), &local_size) != 0 ||
        endpoint(local).port != local_port)
      continue;
    const Endpoint peer = endpoint(remote);
    if (!visit(socket, peer.address + " " + std::to_string(peer.port))) return;
  }
}

std::string client_name(const std::string& address, int port) {
  return address + " " + std::to_string(port);
}

}  // namespace

ClientConnection::ClientConnection(const std::string& remote_address, int remote_port,
                                   int local_port) {
  const std::string wanted = client_name(remote_address, remote_port);
  each_connection(local_port, [&](int socket, const std::string& client) {
    if (client == wanted) socket_ = socket;
    return socket_ < 0;
  });
}

bool ClientConnection::closed() {
  if (socket_ < 0) return false;
  pollfd watched{socket_, POLLIN, 0};
  if (poll(&watched, 1, 0) <= 0) return false;
  if (watched.revents & (POLLERR | POLLHUP | POLLNVAL)) return true;
  char byte = 0;
  const ssize_t got = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
  if (got > 0 || std::exchange(asked_, true)) return false;
  constexpr std::string_view kInterim = "HTTP/1.1 100 Continue\r\n\r\n";
  return ::send(socket_, kInterim.data(), kInterim.size(), kQuietly | MSG_DONTWAIT) < 0;
}

bool ClientConnection::half_closed() const {
  if (socket_ < 0) return false;
  pollfd watched{socket_, POLLIN, 0};
  if (poll(&watched, 1, 0) <= 0 || (watched.revents & (POLLERR | POLLHUP | POLLNVAL))) return false;
  char byte = 0;
  return recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

void ClientConnection::send(std::string_view bytes) const {
  constexpr int kWait = 10'000;  // milliseconds without progress
  while (!bytes.empty()) {
    pollfd watched{socket_, POLLOUT, 0};
    if (poll(&watched, 1, kWait) <= 0) return;
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), kQuietly | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return;
    if (n > 0) bytes.remove_prefix(n);
  }
}

ConnectionWatch::ConnectionWatch(int local_port, std::chrono::milliseconds to_ask,
                                 std::chrono::milliseconds to_answer)
    : local_port_(local_port), to_ask_(to_ask), to_answer_(to_answer) {
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      std::unique_lock lock(pausing_);
      const auto pause = std::min(std::chrono::milliseconds(500), to_ask_ / 4);
      while (!stop.stop_requested()) {
        wake_.wait_for(lock, stop, pause, [] { return false; });
        try {
          look();
        } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it looks again soon
        }
      }
    });
  } catch (const std::system_error& error) {
    throw InputError("cannot start a thread (" + error.code().message() +
                     "): raise the limit on processes or memory (ulimit -u, ulimit -v)");
  }
}

void ConnectionWatch::look() {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  for (auto& [client, connection] : clients_) connection.seen = false;
  each_connection(local_port_, [&](int socket, const std::string& client) {
    Connection& connection =
        clients_.try_emplace(client, Connection{Stage::asking, now, true}).first->second;
    connection.seen = true;
    const bool late = (connection.stage == Stage::asking && now - connection.since > to_ask_) ||
                      (connection.stage == Stage::answering && now - connection.since > to_answer_);
    // What waits for a thread of ours, with bytes that nobody has read yet, is not the client's
    // fault.
    int unread = 0;
    if (late && ioctl(socket, FIONREAD, &unread) == 0 && unread == 0)
      shutdown(socket, SHUT_RDWR);  // whoever reads or writes it finds that it has ended
    return true;
  });
  std::erase_if(clients_, [](const auto& client) {
    return !client.second.seen && client.second.stage != Stage::served;
  });
}

void ConnectionWatch::set(const std::string& client, Stage stage) {
  const std::lock_guard lock(mutex_);
  clients_[client] = {stage, std::chrono::steady_clock::now(), true};
}

ConnectionWatch::Served::Served(ConnectionWatch& watch, const std::string& remote_address,
                                int remote_port)
    : watch_(watch), client_(client_name(remote_address, remote_port)) {
  watch_.set(client_, Stage::served);
}

ConnectionWatch::Served::~Served() { watch_.set(client_, Stage::answering); }

}  // namespace unpack::server
