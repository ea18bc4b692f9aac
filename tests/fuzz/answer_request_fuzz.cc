// Any bytes as the body of a request over HTTP, to each resource of each dialect: refused with a
// sentence, or turned into requests that can be checked and keep their promises to the engine.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/check.h"
#include "server/http/anthropic/messages.h"
#include "server/http/body_fields.h"
#include "server/http/openai/completions.h"
#include "server/http/openai/embeddings.h"
#include "server/http/openai/responses/responses.h"
#include "server/http/openai/sessions.h"
#include "server/http/openai/tokenize.h"
#include "server/serving/server_core.h"
#include "tests/support/fake_tokenizer.h"

namespace recurve {
namespace {

constexpr int32_t kMostChoices = 8;

ServerCore& core() {
  static Metrics metrics;
  static ServerCore made({.delivery_threads = 1, .text_threads = 1},
                         {std::make_shared<ServedModel>(16)}, metrics);
  static const bool served = [] {
    Chat chat{.format = std::make_shared<const ChatTemplate>(
                  "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}", "",
                  jinja::Template::Variables{}),
              .exists = true,
              .tool_form = tool_form_of("[TOOL_CALLS]"),
              .reasoning_form = reasoning_form_of("<think>"),
              .problem = ""};
    made.serve(*made.models().front(), std::make_shared<FakeTokenizer>(),
               {.model_name = "fake",
                .vocab_rows = FakeTokenizer::kSize,
                .hidden_width = 4,
                .tokens = {.bos = FakeTokenizer::kBos, .eos = {FakeTokenizer::kEos}},
                .slots = kMostChoices,
                .read_state = [](std::string_view) -> std::shared_ptr<const ReadyState> {
                  throw StateError(EndReason::kForeignState, "none is one");
                }},
               std::move(chat));
    return true;
  }();
  CHECK(served);
  return made;
}

// A request may ask for what is the client's to see, and its sentence must say something.
void check_refusal(const Refusal& refusal) {
  CHECK(refusal.reason == EndReason::kInvalid || refusal.reason == EndReason::kNotFound ||
        refusal.reason == EndReason::kForeignState);
  CHECK(!refusal.message.empty());
}

void check_request(TextRequest asked) {
  const bool carries_state = asked.session_is_kept;
  ParsedRequest parsed;
  if (const Refused refused =
          validate(std::move(asked), core().models().front()->text, {}, &parsed)) {
    return check_refusal(*refused);
  }
  const Request& request = parsed.request;
  CHECK(!request.prompt.ids.empty() || !request.session.empty());
  for (const int32_t id : request.prompt.ids) CHECK(id >= 0 && id < FakeTokenizer::kSize);
  CHECK(!request.streams.empty() && request.streams.size() <= kMostChoices);
  CHECK(request.session.empty() || (request.session.front() == kReserved) == carries_state);
}

void read(AnswerDialect& dialect, std::string_view body) {
  std::vector<TextRequest> asked;
  const Refused refused =
      guarded("prompt", [&] { return dialect.read(std::string(body), {}, &asked); });
  if (refused) return check_refusal(*refused);
  CHECK(!asked.empty());
  for (TextRequest& one : asked) check_request(std::move(one));
}

void read_embeddings(std::string_view body) {
  EmbedRequest asked;
  bool base64 = false;
  const Refused refused = guarded("input", [&] {
    return read_embed_request(std::string(body), core().limits(nullptr), core(), kAnyone, &asked,
                              &base64);
  });
  if (refused) return check_refusal(*refused);
  CHECK(asked.inputs.size() <= kMaxEmbedInputs);
  const ServedModel& model = *core().models().front();
  int32_t dimensions = 0;
  if (const Refused wrong = check_dimensions(asked, model.text, &dimensions)) {
    return check_refusal(*wrong);
  }
  CHECK(dimensions >= 1 && dimensions <= model.text.width);
}

using Work = Refused (*)(HttpRequest&, const ServerCore&, const WorkLimits&, std::string*);

void run(Work work, std::string_view body) {
  HttpRequest request{.body = std::string(body)};
  std::string object;
  const Refused refused =
      guarded("text", [&] { return work(request, core(), core().limits(nullptr), &object); });
  if (refused) return check_refusal(*refused);
  CHECK(nlohmann::json::parse(object).is_object());
}

// The bytes are the body and the query, of which a resource reads one.
void command(ToSessionCommand to_command, std::string_view body) {
  SessionCommand asked;
  const Refused unread = guarded("", [&] {
    asked = to_command(
        {.names = {"name", "mark"}, .query = std::string(body), .body = std::string(body)});
    return Refused();
  });
  if (unread) return check_refusal(*unread);
  if (const Refused refused = validate(&asked)) return check_refusal(*refused);
  CHECK(asked.kind == SessionCommand::Kind::kList || !asked.name.empty());
  CHECK(asked.limit <= kMaxPageSize);
  if (asked.ttl_seconds) CHECK(*asked.ttl_seconds <= kMaxTtlSeconds);
}

}  // namespace
}  // namespace recurve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace recurve;
  static ResponseStore store(1 << 20);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  Completions completions(core(), {});
  read(completions, body);
  ChatCompletions chat(core(), {});
  read(chat, body);
  Responses responses(core(), store, HttpRequest{.caller = kAnyone});
  read(responses, body);
  Messages messages(core(), {});
  read(messages, body);
  read_embeddings(body);
  std::string counted;
  const Refused uncounted = guarded("input", [&] {
    Responses counts(core(), store, HttpRequest{.caller = kAnyone});
    return counts.count_input(std::string(body), core().limits(nullptr), &counted);
  });
  if (uncounted) check_refusal(*uncounted);
  run(count_tokens, body);
  run(tokenize, body);
  run(detokenize, body);
  for (ToSessionCommand* to_command :
       {to_open, to_get, to_list, to_close, to_fork, to_mark, to_unmark, to_rewind, to_accept}) {
    command(to_command, body);
  }
  return 0;
}
