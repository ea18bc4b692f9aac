#pragma once
#include <atomic>
#include <memory>

#include "server/http/routes.h"
#include "server/request/session_command.h"

namespace recurve {

// The serialized state of a session, sent in pieces as fast as the client reads.
class StateExport final : public Exchange, private Executor::Task {
 public:
  static Route::Begin handler(ServerCore& core);
  StateExport(std::shared_ptr<Connection> connection, ServerCore& core, HttpRequest request);

  void begin() override;
  void written(bool ok) override;
  void client_left() override { gone_ = true; }
  void done() override;

 private:
  Refused post();
  void run() override;
  void refuse(Refused refused);
  void write_next(std::string bytes);

  ServerCore& core_;
  HttpRequest request_;
  std::shared_ptr<StateExport> self_;
  SessionResult result_;
  uint64_t sent_ = 0, total_ = 0;
  bool last_ = false;  // the last bytes are being written
  std::atomic<bool> gone_{false};
};

}  // namespace recurve
