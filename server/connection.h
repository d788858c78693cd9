// The sockets behind requests. The HTTP library shows handlers no socket in its older versions, so
// that they are looked up by their ports among our own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

namespace unpack::server {

// Whether the client of a request is still there.
class ClientConnection {
 public:
  ClientConnection(const std::string& remote_address, int remote_port, int local_port);
  // False where the socket was not found: the request is then answered in any case. A client that
  // has closed its own direction alone waits for its answer; to tell it from one that has gone, an
  // interim response is sent, which only the latter's system refuses.
  bool closed();
  // The client has closed its own direction and still listens: the HTTP library takes it for gone
  // and sends nothing, so that the answer is sent here.
  bool half_closed() const;
  void send(std::string_view bytes) const;

 private:
  int socket_ = -1;
  bool asked_ = false;
};

// Every connection has so long to send its request, and so long to take its answer: one that drips
// bytes would hold a thread for ever, and a few dozen of them all threads.
class ConnectionWatch {
 public:
  ConnectionWatch(int local_port, std::chrono::milliseconds to_ask,
                  std::chrono::milliseconds to_answer);  // starts a thread; InputError

  // A request has been read wholly; while this lives its connection is left alone.
  class Served {
   public:
    Served(ConnectionWatch& watch, const std::string& remote_address, int remote_port);
    ~Served();
    Served(const Served&) = delete;
    Served& operator=(const Served&) = delete;

   private:
    ConnectionWatch& watch_;
    std::string client_;
  };

 private:
  enum class Stage { asking, served, answering };
  struct Connection {
    Stage stage = Stage::asking;
    std::chrono::steady_clock::time_point since;
    bool seen = true;
  };
  void look();
  void set(const std::string& client, Stage stage);

  const int local_port_;
  const std::chrono::milliseconds to_ask_, to_answer_;
  std::mutex mutex_;
  std::map<std::string, Connection> clients_;  // by address and port
  std::mutex pausing_;
  std::condition_variable_any wake_;  // made here: it takes memory, and no thread may throw
  std::jthread thread_;               // last: it uses all of the above
};

}  // namespace unpack::server
