#pragma once
#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace recurve {

// recurve-server as a child process, on free ports of the loopback interface. It ends with this
// object, and if this process dies. To be used by the thread that constructed it, which must live
// as long as the process.
class ServerProcess {
 public:
  // Starts the program that is next to this one, or else in PATH. `arguments`: the model and more
  // flags. Throws std::system_error.
  explicit ServerProcess(const std::vector<std::string>& arguments);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Waits until it serves, and calls on_progress with each line of its progress. False: it has
  // ended, and exit_code() and last_words() say why.
  bool wait_until_serving(const std::function<void(const std::string&)>& on_progress);
  std::string grpc_address() const { return "127.0.0.1:" + std::to_string(grpc_port_); }
  std::string http_url() const { return "http://127.0.0.1:" + std::to_string(http_port_) + "/"; }

  // Asks it to end, and waits for its end. Returns its exit code, or 128 and the number of the
  // signal.
  int stop();
  // Of a server that has ended: what it wrote of the reason, whole lines.
  const std::string& last_words() const { return last_words_; }

 private:
  bool read_line(std::string* line);
  // Takes the ports from the server's log. Returns the line of a text, or nothing of an event.
  std::string take(const std::string& line);

  std::unique_ptr<FILE, int (*)(FILE*)> log_;
  pid_t pid_ = -1;
  int exit_code_ = 0;
  int grpc_port_ = 0, http_port_ = 0;
  std::string last_words_;
  std::thread reader_;  // of its log once it serves
};

}  // namespace recurve
