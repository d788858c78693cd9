// WebServer::run and stop, from the threads that call them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "test_paths.h"
#include "unpack/error.h"
#include "unpack/serve.h"

namespace unpack {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<WebServer> tiny_server() {
  ServeOptions options;
  options.port = 0;
  options.models = {fmt::format("{}/golden/tiny-gpt2", UNPACK_TEST_DATA)};
  options.load.threads = 1;
  return std::make_shared<WebServer>(options);
}

// What `call` threw, "" where it returned, or "does not end": a thread of its own, which is left
// behind then.
template <typename Call>
std::future<std::string> in_a_thread(Call call) {
  auto ended = std::make_shared<std::promise<std::string>>();
  std::future<std::string> answer = ended->get_future();
  std::thread([ended, call] {
    try {
      call();
      ended->set_value("");
    } catch (const Error& error) {
      ended->set_value(error.what());
    }
  }).detach();
  return answer;
}

std::string end_of(std::future<std::string>& answer) {
  return answer.wait_for(20s) == std::future_status::ready ? answer.get() : "does not end";
}

// The descriptor of this process that listens on the port.
int listening_on(int port) {
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    int listens = 0;
    socklen_t length = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) continue;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
        ntohs(address.sin_port) == port)
      return fd;
  }
  return -1;
}

void wait_until_it_answers(int port) {
  for (int i = 0; i < 2000; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string text = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    char first = 0;
    const bool answered = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                          send(fd, text.data(), text.size(), MSG_NOSIGNAL) > 0 &&
                          recv(fd, &first, 1, 0) == 1;
    shutdown(fd, SHUT_RDWR);
    close(fd);
    if (answered) return;
    std::this_thread::sleep_for(5ms);
  }
  FAIL() << "no answer on port " << port;
}

TEST(WebServerStop, LetsRunReturn) {
  const auto server = tiny_server();
  auto run = in_a_thread([server] { server->run(); });
  wait_until_it_answers(server->port());
  auto stop = in_a_thread([server] { server->stop(); });
  EXPECT_EQ(end_of(stop), "");
  EXPECT_EQ(end_of(run), "");
}

TEST(WebServerStop, BeforeRunIsNotForgotten) {
  const auto server = tiny_server();
  auto stop = in_a_thread([server] { server->stop(); });
  EXPECT_EQ(end_of(stop), "");
  auto run = in_a_thread([server] { server->run(); });
  EXPECT_EQ(end_of(run), "");
}

TEST(WebServerStop, WhileRunBeginsIsNotForgotten) {
  for (int i = 0; i < 20; ++i) {
    const auto server = tiny_server();
    auto run = in_a_thread([server] { server->run(); });
    auto stop = in_a_thread([server] { server->stop(); });
    ASSERT_EQ(end_of(stop), "") << i;
    ASSERT_EQ(end_of(run), "") << i;
  }
}

TEST(WebServerStop, ReturnsAfterRunThrew) {
  const auto server = tiny_server();
  auto run = in_a_thread([server] { server->run(); });
  wait_until_it_answers(server->port());
  const int fd = listening_on(server->port());
  ASSERT_GE(fd, 0);
  shutdown(fd, SHUT_RDWR);  // its port is taken away from it
  EXPECT_EQ(end_of(run), "the server stopped listening");
  auto stop = in_a_thread([server] { server->stop(); });
  EXPECT_EQ(end_of(stop), "");
  auto again = in_a_thread([server] { server->stop(); });
  EXPECT_EQ(end_of(again), "");
}

}  // namespace
}  // namespace unpack
