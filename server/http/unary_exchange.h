#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "server/http/exchange.h"
#include "server/serving/server_core.h"

namespace recurve {

// What is answered with one object of JSON, once a text thread or the engine has said what is in
// it.
class UnaryExchange final : public Exchange, private Executor::Task {
 public:
  // Reads the body and writes the object as JSON, on a text thread; may throw WorkUnwanted as the
  // limits have it, and BadField.
  using TextWork = std::function<Refused(std::string body, const ServedModel& model,
                                         const WorkLimits& limits, std::string* object)>;
  // Makes a command of the request; on the connection's thread. May throw BadField.
  using ToCommand = std::function<SessionCommand(const HttpRequest& request)>;
  // The object that a command's result is.
  using ToObject =
      std::function<nlohmann::json(const SessionCommand& command, const SessionResult& result)>;

  UnaryExchange(std::shared_ptr<Connection> connection, ServerCore& core, HttpRequest request,
                TextWork work);
  // `status`: of what is not refused.
  UnaryExchange(std::shared_ptr<Connection> connection, ServerCore& core, HttpRequest request,
                ToCommand to_command, ToObject to_object, int status);

  void begin() override;
  void written(bool) override {}
  void client_left() override;
  void done() override;

 private:
  void run() override;
  Refused admit();
  Refused post_command();
  void answer(Refused refused, std::string object);

  ServerCore& core_;
  const std::shared_ptr<ServedModel> model_ = core_.model();
  HttpRequest request_;
  const TextWork work_;
  const ToCommand to_command_;
  const ToObject to_object_;
  const int status_ = 200;
  ByteBudget::Share body_share_;
  std::shared_ptr<UnaryExchange> self_;
  std::atomic<bool> unwanted_{false};
};

}  // namespace recurve
