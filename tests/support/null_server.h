#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "server/engine/engine.h"
#include "server/http/anthropic/api.h"
#include "server/http/openai/api.h"
#include "server/http/server.h"
#include "server/http/server_api.h"
#include "server/rpc/server.h"
#include "server/text/chat/chat_template.h"
#include "server/text/tokenizers/tokenizer.h"
#include "tests/support/engine/null_model.h"

namespace recurve::testing {

// Makes every step take a given time, and notes when each ended.
class PacedModel final : public Model {
 public:
  using Clock = std::chrono::steady_clock;

  PacedModel(const Model& inner, Clock::duration step) : inner_(inner), step_(step) {}
  const ModelInfo& info() const override { return inner_.info(); }
  StateLayout state_layout() const override { return inner_.state_layout(); }
  size_t arena_bytes(const StepLimits& limits) const override { return inner_.arena_bytes(limits); }
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override {
    const Clock::time_point began = Clock::now();
    inner_.forward(batch, states, arena, stream, logits);
    if (step_.count() == 0) return;
    std::this_thread::sleep_until(began + step_);
    ended_ = Clock::now().time_since_epoch().count();
  }
  // When the newest step ended. Right for a token that arrives before the next one does.
  Clock::time_point ended() const { return Clock::time_point(Clock::duration(ended_.load())); }

 private:
  const Model& inner_;
  const Clock::duration step_;
  mutable std::atomic<Clock::rep> ended_{0};
};

struct NullServerOptions {
  std::string tokenizer;  // a model directory
  int slots = 64;
  PacedModel::Clock::duration step = {};  // 0: as fast as it goes
  std::string listen = "127.0.0.1:0", http = "127.0.0.1:0";
  std::shared_ptr<TlsHandshaker> tls = nullptr;  // of gRPC
  std::string keys = {};                         // a file; empty: none are asked for
};

// The whole server around a model that computes nothing, with its frontends.
class NullServer {
 public:
  explicit NullServer(const NullServerOptions& o)
      : tokenizer_(load_tokenizer(o.tokenizer)),
        null_(tokenizer_->size()),
        model_(null_, o.step),
        served_(std::make_shared<ServedModel>(o.slots)),
        core_({.max_tokenising = std::max(o.slots, ServerCoreOptions{}.max_tokenising),
               .keys = o.keys.empty() ? nullptr : std::make_shared<Keyring>(o.keys)},
              {served_}, metrics_),
        rpc_({.listen = o.listen, .tls = o.tls}, core_),
        http_({.listen = o.http}, {openai_api(core_), anthropic_api(core_), server_api(core_)},
              core_, rpc_.connections()),
        engine_(model_, *backend_,
                {.rows = tokenizer_->size(), .usable = tokenizer_->size(), .eos_ids = {}},
                served_->queue, served_->stats, metrics_, {.slots = o.slots, .sessions = {}}) {
    served_->start_engine([this] { engine_.run(); });
    core_.serve(
        *served_, tokenizer_,
        {.model_name = "null", .vocab_rows = tokenizer_->size(), .slots = o.slots},
        {.format = std::make_shared<ChatTemplate>(kChatTemplate, "", jinja::Template::Variables{}),
         .exists = true,
         .text = std::string(kChatTemplate)});
  }
  ~NullServer() {
    http_.shutdown();
    rpc_.shutdown();
    served_->stop_engine();
  }

  const PacedModel& model() const { return model_; }
  RpcServer& rpc() { return rpc_; }
  const RpcServer& rpc() const { return rpc_; }
  int http_port() const { return http_.port(); }

 private:
  static constexpr std::string_view kChatTemplate =
      "{% for message in messages %}{{ message.content }}\n{% endfor %}";

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::unique_ptr<Backend> backend_ = make_backend("reference");
  const NullModel null_;
  const PacedModel model_;
  Metrics metrics_;
  const std::shared_ptr<ServedModel> served_;
  ServerCore core_;
  RpcServer rpc_;
  HttpServer http_;
  Engine engine_;
};

}  // namespace recurve::testing
