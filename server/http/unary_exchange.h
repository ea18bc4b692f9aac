#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "server/http/routes.h"
#include "server/serving/server_core.h"

namespace recurve {

// A request that a text thread or the engine answers with one object of JSON.
class UnaryExchange final : public Exchange, private Executor::Task {
 public:
  // Takes the body and writes the object as JSON, on a text thread; may throw WorkUnwanted as the
  // limits require it, and BadField.
  using RequestWork = std::function<Refused(HttpRequest& request, const ServerCore& core,
                                            const WorkLimits& limits, std::string* object)>;
  // Reads a command from the request, on the connection's thread. May throw BadField.
  using ToCommand = std::function<SessionCommand(const HttpRequest& request)>;
  // The same of a body that may be long, on a text thread.
  using ReadCommand = std::function<Refused(const HttpRequest& request, const ServerCore& core,
                                            SessionCommand* command)>;
  // The object for a command's result.
  using ToObject =
      std::function<nlohmann::json(const SessionCommand& command, const SessionResult& result)>;

  // Handlers of routes. `status`: of a response that is no refusal.
  static Route::Begin request_handler(ServerCore& core, RequestWork work);
  static Route::Begin command_handler(ServerCore& core, ToCommand to_command, ToObject to_object,
                                      int status = 200);
  static Route::Begin command_handler(ServerCore& core, ReadCommand read, ToObject to_object,
                                      int status = 200);

  void begin() override;
  void written(bool) override {}
  void client_left() override;
  void done() override;

 private:
  struct Work {
    RequestWork text = {};  // or the others
    ToCommand to_command = {};
    ReadCommand read_command = {};
    ToObject to_object = {};
    int status = 200;
  };
  UnaryExchange(std::shared_ptr<Connection> connection, ServerCore& core, HttpRequest request,
                std::shared_ptr<const Work> work);
  static Route::Begin handler(ServerCore& core, Work work);

  void run() override;
  Refused admit();
  Refused post_command();
  Refused post(SessionCommand command);
  void answer(Refused refused, std::string object);

  ServerCore& core_;
  HttpRequest request_;
  const std::shared_ptr<const Work> work_;
  ByteBudget::Share body_share_;
  std::shared_ptr<UnaryExchange> self_;
  std::atomic<bool> unwanted_{false};
};

}  // namespace recurve
