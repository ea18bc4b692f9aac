#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/answer_dialect.h"
#include "server/http/anthropic/message_fields.h"
#include "server/http/exchange.h"
#include "server/serving/server_core.h"

namespace recurve {

// The body of an error in this dialect: see ErrorBody.
nlohmann::json anthropic_error(int status, const std::string& message, const std::string& field);

// /v1/messages: an answer is a message of blocks, each a text or a call of a tool, as events of a
// stream or as one object.
class Messages final : public AnswerDialect {
 public:
  // `core` outlives it.
  Messages(const ServerCore& core, const HttpRequest& request);

  Refused read(std::string text, const WorkLimits& limits,
               std::vector<TextRequest>* asked) override;
  bool streams() const override { return stream_; }
  std::string take(size_t index, const AnswerEvent& event) override;
  std::string stream_end() override { return {}; }
  std::string broken(const Refusal& refusal) override;
  std::string whole() override;

 private:
  enum class Kind { kText, kThinking, kCall };
  struct Block {
    Kind kind = Kind::kText;
    std::string text = {};  // or the arguments
    std::string id = {}, name = {};
  };

  std::string write(const RequestAccepted& accepted);
  std::string write(const PromptScored&) { return {}; }
  std::string write(const PromptProgress&) { return {}; }
  std::string write(const AnswerDelta& delta);
  std::string write(const AnswerEnd& end);
  std::string add(Kind kind, const std::string& text);
  std::string add(std::string_view text);
  std::string open(Block block);
  std::string close();
  std::string object();
  nlohmann::json usage() const;

  const ServerCore& core_;
  FoundModel model_;  // once read
  const Identity caller_;
  const std::string session_, id_;
  bool stream_ = false;
  Thinking thinking_;
  RequestAccepted accepted_;
  int64_t generated_ = 0, thought_ = 0;  // tokens; of these, of thinking
  int64_t saved_tokens_ = 0;             // of the input, by the prefix cache; set at the end
  std::vector<Block> blocks_;
  const char* stop_reason_ = nullptr;
  nlohmann::json stop_sequence_ = nullptr;
};

// The tokens of a body's messages, system and tools: {"input_tokens": N}. See
// UnaryExchange::RequestWork.
Refused count_tokens(HttpRequest& request, const ServerCore& core, const WorkLimits& limits,
                     std::string* object);

}  // namespace recurve
