#pragma once
#include <memory>
#include <optional>
#include <string>

#include "server/http/routes.h"
#include "server/serving/embedding.h"

namespace recurve {

// Reads a body. base64: whether the values are wanted in it. May throw WorkUnwanted and BadField.
Refused read_embed_request(std::string body, const WorkLimits& limits, const ServerCore& core,
                           const Identity& caller, EmbedRequest* asked, bool* base64);

// A request for embeddings: one object of JSON, whose size is known and reserved before anything is
// computed.
class Embeddings final : public Exchange, private EmbedSink {
 public:
  static Route::Begin handler(ServerCore& core);
  Embeddings(std::shared_ptr<Connection> connection, ServerCore& core, HttpRequest request);

  void begin() override;
  void written(bool) override {}
  void client_left() override;
  void done() override;

 private:
  Refused read(EmbedRequest* asked) override;
  Refused reserve_object(const EmbedRequest& asked);
  void send(EmbedEvent event) override;
  void append(const Embedded& one);
  std::optional<Clock::time_point> deadline() const override { return deadline_; }
  std::string peer() const override;
  CallOrigin origin() const override { return request_.origin; }
  bool busy() override { return false; }  // until the end
  size_t unsent() const override { return 0; }
  void discard() override { object_.clear(); }
  void cut() override;
  void finish(const Refused& refusal) override;
  bool finished() const override { return finished_; }
  void flush() override;
  void released() override;

  ServerCore& core_;
  HttpRequest request_;
  std::shared_ptr<Embeddings> self_, alive_;  // until done(), and until released()
  ServedCall* call_ = nullptr;
  std::optional<Clock::time_point> deadline_;
  bool base64_ = false;
  ByteBudget::Share object_share_;
  std::string object_;
  std::string model_name_;  // as the request has it

  // On the strand.
  bool finishing_ = false, finished_ = false;
  Refused refusal_;
};

}  // namespace recurve
