// The most memory that the server takes for one request, for any body: each list that a body can
// have, filled alone and together with each other one, up to the longest body that is read.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/amount.h"
#include "tests/support/counted_memory.h"
#include "tests/support/http_fixture.h"

namespace recurve::http_body_memory_test {

using nlohmann::json;
using testing::HttpClient;

constexpr int64_t kMost = 16 << 20;  // in addition to 4 times the body
constexpr int kQueue = 256;          // as the server has it
constexpr int32_t kVocabulary = 65536;

// So many ids as models have, and one for so many bytes of a text.
class LargeTokenizer final : public Tokenizer {
 public:
  explicit LargeTokenizer(size_t bytes_an_id) : bytes_an_id_(bytes_an_id) {}
  std::unique_ptr<TextEncoder> encoder(SpecialTokens, TextPosition,
                                       const WorkLimits& limits) const override {
    return std::make_unique<Encoder>(bytes_an_id_, limits);
  }
  bool marks_start() const override { return false; }
  int32_t size() const override { return kVocabulary; }
  std::string_view token_bytes(int32_t id) const override { return bytes_.token_bytes(id); }
  bool is_special(int32_t id) const override { return bytes_.is_special(id); }
  std::optional<int32_t> id_of(std::string_view name) const override { return bytes_.id_of(name); }
  std::optional<int32_t> bos_id() const override { return bytes_.bos_id(); }
  std::optional<int32_t> eos_id() const override { return bytes_.eos_id(); }
  std::string description() const override { return "bytes"; }

 private:
  class Encoder final : public TextEncoder {
   public:
    Encoder(size_t bytes_an_id, const WorkLimits& limits)
        : bytes_an_id_(bytes_an_id), limits_(limits) {}
    void push(std::string_view utf8, bool, std::vector<int32_t>* ids) override {
      for (size_t at = 0; at < utf8.size(); at += bytes_an_id_) {
        ids->push_back(static_cast<unsigned char>(utf8[at]));
        limits_.check(ids->size());
      }
    }
    void set_special(SpecialTokens, std::vector<int32_t>*) override {}
    size_t held() const override { return 0; }

   private:
    const size_t bytes_an_id_;
    const WorkLimits limits_;
  };

  const size_t bytes_an_id_;
  const FakeTokenizer bytes_;
};

// Ends each request with nothing, and has it until let_go(): as if all waited.
class HoldingEngine {
 public:
  explicit HoldingEngine(AdmissionQueue& queue) : queue_(queue), thread_([this] { run(); }) {}
  ~HoldingEngine() {
    ending_ = true;
    queue_.wake();
    thread_.join();
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    held_.clear();
  }

 private:
  void run() {
    while (!ending_) {
      AdmissionQueue::Arrivals arrivals = queue_.take();
      for (SessionCommand& command : arrivals.commands) command.done({});
      for (Request& request : arrivals.requests) {
        const auto streams = request.streams;
        {
          const std::lock_guard lock(mutex_);
          held_.push_back(std::move(request));
        }
        queue_.count_removed(1);
        for (const auto& stream : streams) stream->accept({});
        for (const auto& stream : streams) stream->finish({.reason = EndReason::kLength});
      }
      queue_.wait({});
    }
  }

  AdmissionQueue& queue_;
  std::mutex mutex_;
  std::vector<Request> held_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

class BodyMemory : public ::testing::Test {
 protected:
  // As long texts have tokens that are accepted.
  explicit BodyMemory(size_t bytes_an_id = 16) : bytes_an_id_(bytes_an_id) {}

  void SetUp() override {
    const char* written =
        "{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|"
        "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<tool_call>{% endif %}";
    Chat chat{
        .format = std::make_shared<const ChatTemplate>(written, "", jinja::Template::Variables{}),
        .exists = true,
        .tool_form = tool_form_of(written),
        .problem = ""};
    engine_.emplace(queue_);
    // A slow machine may take its time: what is tested is memory.
    const HttpTimes times{.body = std::chrono::minutes(10), .linger = std::chrono::minutes(1)};
    server_.emplace(HttpOptions{.listen = "127.0.0.1:0", .times = times},
                    std::vector{openai_api(core_), anthropic_api(core_)}, core_, connections_);
    core_.serve(*served_, std::make_shared<LargeTokenizer>(bytes_an_id_),
                {.model_name = "fake",
                 .vocab_rows = kVocabulary,
                 .tokens = {.bos = FakeTokenizer::kBos, .eos = {FakeTokenizer::kEos}},
                 .slots = 16},
                std::move(chat));
    // What the first constraint is compiled with stays.
    send("/v1/completions", R"({"prompt":"p","max_tokens":1,"guided_choice":["a"]})");
  }
  void TearDown() override {
    server_->shutdown();
    engine_.reset();
    fmt::print("at most 16 MB and {:.2f} times the body: {}\n", most_times_, most_at_);
  }

  struct Taken {
    int status = 0;
    int64_t bytes = 0;
  };
  Taken send(const std::string& path, const std::string& body) {
    const std::string head = "POST " + path +
                             " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                             "Content-Type: application/json\r\nContent-Length: " +
                             std::to_string(body.size()) + "\r\n\r\n";
    HttpClient client(server_->port());
    const testing::MostLiveBytes most;
    client.send(head);
    client.send(body);
    const int status = client.read_status();
    EXPECT_TRUE(core_.registry.wait_until_empty(Clock::now() + std::chrono::minutes(10)));
    const Taken taken{status, most()};
    engine_->let_go();
    return taken;
  }
  void expect_bounded(const std::string& path, const std::string& name, const std::string& body) {
    const Taken taken = send(path, body);
    const auto size = static_cast<int64_t>(body.size());
    const double times = static_cast<double>(taken.bytes - kMost) / static_cast<double>(size);
    if (times > most_times_) most_at_ = fmt::format("{} {}: {} bytes", path, name, size);
    most_times_ = std::max(most_times_, times);
    EXPECT_LE(taken.bytes, 4 * size + kMost)
        << path << " " << name << ": " << size << " bytes, status " << taken.status << ", " << times
        << " times";
    EXPECT_TRUE(taken.status == 200 || taken.status == 400 || taken.status == 413 ||
                taken.status == 429 || taken.status == 501)
        << path << " " << name << ": " << taken.status;
  }

  const size_t bytes_an_id_;
  double most_times_ = 0;  // its bytes, in addition to 16 MB, and of what
  std::string most_at_ = {};
  Metrics metrics_;
  const std::shared_ptr<ServedModel> served_ = std::make_shared<ServedModel>(kQueue);
  AdmissionQueue& queue_ = served_->queue;
  Connections connections_{{.in_all = 100, .by_network = 100}};
  ServerCore core_{{}, {served_}, metrics_};
  std::optional<HoldingEngine> engine_;
  std::optional<HttpServer> server_;
};

// "NAME": VALUE of about so many bytes, made of as many elements as fit, or as there may be.
struct Filled {
  std::string name;
  std::string (*value)(size_t bytes);
};

template <size_t kMostElements = SIZE_MAX>
std::string list(size_t bytes, const std::string& element, const char* open = "[",
                 const char* close = "]") {
  const size_t count = std::clamp(bytes / (element.size() + 1), size_t{1}, kMostElements);
  std::string text = open;
  text.reserve(bytes + 16);
  for (size_t i = 0; i < count; ++i) text.append(i == 0 ? "" : ",").append(element);
  return text + close;
}

// Ids, each once: "1,2,3".
std::string ids(size_t bytes, size_t most_ids) {
  std::string text = "[0";
  for (size_t id = 1; text.size() < bytes && id < most_ids; ++id) text += "," + std::to_string(id);
  return text + "]";
}

std::string words(size_t bytes, const char* prefix, const char* suffix, const char* open,
                  const char* close) {
  std::string text = open;
  for (size_t i = 0; text.size() + 20 < bytes; ++i) {
    text.append(i == 0 ? "" : ",").append(prefix).append(std::to_string(i)).append(suffix);
  }
  return text + close;
}

// What every resource reads.
const std::vector<Filled> kCommon = {
    {"stop", [](size_t n) { return list(n, R"("")"); }},
    {"stop", [](size_t n) { return list<16>(n, '"' + std::string(1024, 's') + '"'); }},
    {"stop", [](size_t n) { return list(n, '"' + std::string(n / 2, 's') + '"'); }},
    {"stop_token_ids", [](size_t n) { return ids(n, 64); }},
    {"stop_token_ids", [](size_t n) { return list(n, "5"); }},
    {"allowed_token_ids", [](size_t n) { return ids(n, kVocabulary); }},
    {"allowed_token_ids", [](size_t n) { return list(n, "5"); }},
    {"logit_bias",
     [](size_t n) { return words(std::min<size_t>(n, 9000), "\"", "\":1", "{", "}"); }},
    {"logit_bias", [](size_t n) { return words(n, "\"", "\":1", "{", "}"); }},
    {"prefix_points", [](size_t n) { return list(n, "1"); }},
    {"prefix_points", [](size_t n) { return list<8>(n, "1"); }},
    {"unheard_of", [](size_t n) { return list(n, "0"); }},
    {"unheard_of", [](size_t n) { return list(n, "{}"); }},
    {"unheard_of", [](size_t n) { return list(n, R"({"a":{}})"); }},
    {"unheard_of", [](size_t n) { return '"' + std::string(n, 'u') + '"'; }},
    {"bad_words", [](size_t n) { return list(n, R"("a")"); }},
    {"bad_words", [](size_t n) { return '"' + std::string(n, 'a') + '"'; }},
};
const std::vector<Filled> kConstraints = {
    {"guided_choice", [](size_t n) { return words(n, "\"", "\"", "[", "]"); }},
    {"guided_choice", [](size_t n) { return list(std::min<size_t>(n, 200'000), R"("a")"); }},
    {"guided_json", [](size_t n) { return words(n, "\"", "\"", R"({"enum":[)", "]}"); }},
    {"guided_json",
     [](size_t n) {
       return R"({"const":")" + std::string(std::min<size_t>(n, 96 << 10), 'c') + "\"}";
     }},
    {"structured_outputs", [](size_t n) { return words(n, "\"", "\"", R"({"choice":[)", "]}"); }},
    {"guided_grammar", [](size_t n) { return '"' + std::string(n, 'a') + '"'; }},
    {"session", [](size_t) { return std::string("\"s\""); }},
};
const std::vector<Filled> kPrompts = {
    {"prompt", [](size_t n) { return '"' + std::string(n, 'p') + '"'; }},
    {"prompt", [](size_t n) { return list(n, R"("p")"); }},
    {"prompt", [](size_t n) { return list(n, R"("")"); }},
    {"prompt",
     [](size_t n) {
       return list<kQueue>(n, '"' + std::string(std::min(n / 2, n / kQueue), 'p') + '"');
     }},
    {"prompt", [](size_t n) { return list<kQueue>(n, R"("p")"); }},
    {"prompt", [](size_t n) { return list(n, "[]"); }},
    {"prompt", [](size_t n) { return list(n, "[1]"); }},
    {"prompt", [](size_t n) { return list(n, "1"); }},
    {"prompt", [](size_t n) { return "[" + list(n, "1") + "]"; }},
    {"prompt", [](size_t n) { return list<kQueue>(n, list(n / kQueue, "65535")); }},
    {"echo", [](size_t) { return std::string("true"); }},
    {"return_token_strs", [](size_t) { return std::string("true"); }},
};
const std::vector<Filled> kMessages = {
    {"messages", [](size_t n) { return list(n, "{}"); }},
    {"messages", [](size_t n) { return list(n, R"({"role":"user","content":""})"); }},
    {"messages",
     [](size_t n) { return list(n, R"({"role":"user","content":"hello, how are you?"})"); }},
    {"messages",
     [](size_t n) {
       return list<1>(n, R"({"role":"user","content":")" + std::string(n, 'm') + "\"}");
     }},
    {"messages",
     [](size_t n) {
       return R"([{"role":"user","content":[{"type":"text","text":")" + std::string(n, 'm') +
              "\"}]}]";
     }},
    {"messages",
     [](size_t n) {
       return R"([{"role":"user","content":)" + list(n, R"({"type":"text","text":"m"})") + "}]";
     }},
    {"messages",
     [](size_t n) {
       return R"([{"role":"assistant","content":"","tool_calls":)" +
              list(n, R"({"type":"function","function":{"name":"f","arguments":"{}"}})") + "}]";
     }},
    {"messages",
     [](size_t n) {
       return R"([{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"a\":\")" +
              std::string(n, 'a') + R"(\"}"}}]}])";
     }},
    {"messages",
     [](size_t n) {
       return R"([{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"a\":)" +
              list(n, "0") + R"(}"}}]}])";
     }},
    {"messages",
     [](size_t n) { return R"([{"role":"user","content":"m","more":)" + list(n, "0") + "}]"; }},
    {"messages",
     [](size_t n) {
       const std::string half(n / 2, 'm');
       return R"([{"role":"system","content":")" + half + R"("},{"role":"developer","content":")" +
              half + R"("},{"role":"user","content":"m"}])";
     }},
    {"messages",
     [](size_t n) {
       return list<64>(n, R"({"role":"user","content":")" + std::string(n / 64, 'm') + "\"}");
     }},
};
const std::vector<Filled> kTools = {
    {"tools", [](size_t n) { return list(n, R"({"type":"function","function":{"name":"f"}})"); }},
    {"tools", [](size_t n) { return list(n, "{}"); }},
    {"tools",
     [](size_t n) {
       return R"([{"type":"function","function":{"name":"f","description":")" +
              std::string(n, 'd') + "\"}}]";
     }},
    {"tools",
     [](size_t n) {
       return R"([{"type":"function","function":{"name":"f","parameters":{"enum":)" + list(n, "0") +
              "}}}]";
     }},
    {"chat_template_kwargs", [](size_t n) { return words(n, "\"k", "\":1", "{", "}"); }},
    {"chat_template_kwargs", [](size_t n) { return R"({"k":)" + list(n, "1") + "}"; }},
};
const std::vector<Filled> kInputs = {
    {"input", [](size_t n) { return '"' + std::string(n, 'i') + '"'; }},
    {"input", [](size_t n) { return list(n, R"({"role":"user","content":"i"})"); }},
    {"input",
     [](size_t n) {
       return R"([{"role":"user","content":)" + list(n, R"({"type":"input_text","text":"i"})") +
              "}]";
     }},
    {"input",
     [](size_t n) { return list(n, R"({"type":"function_call","call_id":"c","name":"f"})"); }},
    {"input", [](size_t n) { return list(n, R"({"type":"reasoning"})"); }},
    {"input",
     [](size_t n) {
       return R"([{"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":\")" +
              std::string(n, 'a') + R"(\"}"}])";
     }},
    {"store", [](size_t) { return std::string("true"); }},
};
const std::vector<Filled> kTokens = {
    {"tokens", [](size_t n) { return list(n, "1"); }},
    {"tokens", [](size_t n) { return list(n, "65"); }},
    {"tokens", [](size_t n) { return list(n, R"("")"); }},
};
const std::vector<Filled> kEmbedded = {
    {"input", [](size_t n) { return '"' + std::string(n, 'i') + '"'; }},
    {"input", [](size_t n) { return list(n, R"("i")"); }},
    {"input", [](size_t n) { return list<kMaxEmbedInputs>(n, R"("i")"); }},
    {"input", [](size_t n) { return list(n, "65"); }},
    {"input", [](size_t n) { return list(n, "[65]"); }},
};
const std::vector<Filled> kOfResponses = {
    {"include", [](size_t n) { return list(n, R"("")"); }},
    {"metadata", [](size_t n) { return words(n, "\"m", "\":\"\"", "{", "}"); }},
    {"metadata", [](size_t n) { return R"({"m":")" + std::string(n, 'm') + "\"}"; }},
    {"instructions", [](size_t n) { return '"' + std::string(n, 'i') + '"'; }},
    {"tools", [](size_t n) { return list(n, R"({"type":"function","name":"f"})"); }},
};

// Of Anthropic's dialect: a block of each kind, many times.
std::string blocks_of(const char* role, size_t n, const char* block) {
  return fmt::format(R"([{{"role":"{}","content":{}}}])", role, list(n, block));
}
const std::vector<Filled> kBlocks = {
    {"messages", [](size_t n) { return list(n, R"({"role":"user","content":""})"); }},
    {"messages", [](size_t n) { return list(n, R"({"role":"user","content":[]})"); }},
    {"messages",
     [](size_t n) {
       return list(n / 2, R"({"role":"user","content":"a"},{"role":"assistant","content":"b"})");
     }},
    {"messages", [](size_t n) { return blocks_of("user", n, R"({"type":"text","text":""})"); }},
    {"messages", [](size_t n) { return blocks_of("user", n, R"({"type":"tool_result"})"); }},
    {"messages", [](size_t n) { return blocks_of("assistant", n, R"({"type":"tool_use"})"); }},
    {"messages",
     [](size_t n) {
       return R"([{"role":"assistant","content":[{"type":"tool_use","input":{"a":")" +
              std::string(n, 'a') + R"("}}]}])";
     }},
    {"system", [](size_t n) { return list(n, R"({"type":"text","text":""})"); }},
    {"system", [](size_t n) { return '"' + std::string(n, 's') + '"'; }},
    {"stop_sequences", [](size_t n) { return list(n, R"("s")"); }},
    {"tools", [](size_t n) { return list(n, R"({"name":"f","input_schema":{}})"); }},
};

struct Resource {
  const char* path;
  std::string least;  // a body cannot be without
  std::vector<const std::vector<Filled>*> lists;
};
const std::vector<Resource> kResources = {
    {"/v1/completions", R"("prompt":"p")", {&kPrompts, &kCommon, &kConstraints}},
    {"/v1/chat/completions",
     R"("messages":[{"role":"user","content":"m"}])",
     {&kMessages, &kTools, &kCommon, &kConstraints}},
    {"/v1/responses", R"("input":"i")", {&kInputs, &kOfResponses, &kCommon}},
    {"/v1/messages", R"("messages":[{"role":"user","content":"m"}])", {&kBlocks}},
    {"/v1/embeddings", R"("input":"i")", {&kEmbedded}},
    {"/tokenize", R"("prompt":"p")", {&kMessages, &kTools, &kPrompts}},
    {"/detokenize", R"("tokens":[1])", {&kTokens}},
};

std::vector<Filled> lists_of(const Resource& resource) {
  std::vector<Filled> all;
  for (const auto* some : resource.lists) all.insert(all.end(), some->begin(), some->end());
  return all;
}

std::string body_of(const Resource& resource, const std::vector<const Filled*>& fields,
                    size_t bytes) {
  std::string body = R"({"max_tokens":0)";
  const bool stores =
      std::ranges::any_of(fields, [](const Filled* f) { return f->name == "store"; });
  if (std::string(resource.path) == "/v1/responses") body = R"({"background":false)";
  if (std::string(resource.path) == "/v1/embeddings") body = R"({"encoding_format":"base64")";
  if (std::string(resource.path) == "/v1/responses" && !stores) body += R"(,"store":false)";
  const std::string needed = resource.least.substr(0, resource.least.find(':'));
  bool has_needed = false;
  for (const Filled* field : fields) {
    has_needed |= needed == '"' + field->name + '"' || field->name == "messages";
    body += ",\"" + field->name + "\":" + field->value(bytes / fields.size());
  }
  if (!has_needed) body += "," + resource.least;
  return body + "}";
}

void for_each_pair(const Resource& resource, const auto& visit) {
  const std::vector<Filled> fields = lists_of(resource);
  for (size_t a = 0; a < fields.size(); ++a) {
    for (size_t b = a + 1; b < fields.size(); ++b) {
      if (fields[a].name != fields[b].name) visit(fields[a], fields[b], a, b);
    }
  }
}

// Those that take the most to compile, served or refused.
TEST_F(BodyMemory, OfEachConstraintIsBounded) {
  const auto body = [](const std::string& name, const std::string& value) {
    return R"({"prompt":"p","max_tokens":1,")" + name + "\":" + value + "}";
  };
  const auto expect = [&](const std::string& name, const std::string& value) {
    expect_bounded("/v1/completions", fmt::format("{} of {}", name, value.size()),
                   body(name, value));
  };
  for (const size_t size : {16 << 10, 64 << 10, 96 << 10, 128 << 10, 192 << 10, 255 << 10}) {
    if (testing::kSanitized && size > (16 << 10))
      break;  // the same program as shipped takes seconds
    const std::string text(size, 't');
    expect("guided_json", R"({"const":")" + text + "\"}");
    expect("guided_json", words(size, "\"", "\"", R"({"enum":[)", "]}"));
    expect("guided_json", words(size, "\"text number ", ", of many words\"", R"({"enum":[)", "]}"));
    expect("guided_json",
           words(size, R"({"properties":{"kind":{"const":")",
                 R"("},"value":{"type":"string"}},"required":["kind"]})", R"({"anyOf":[)", "]}"));
    expect("guided_json", words(std::min<size_t>(size, 20 << 10), "\"p", R"(":{"maxLength":50})",
                                R"({"properties":{)", "}}"));
    expect("guided_choice", words(size, "\"text number ", ", of many words\"", "[", "]"));
    expect("guided_grammar", R"("root ::= \")" + text + R"(\"")");
    expect("guided_grammar", words(size, "| a", "", "\"root ::= a", "\""));
    expect("guided_grammar", words(size, "[a-z]{0,", "}", "\"root ::= ", "\""));
    expect("guided_regex", '"' + std::string(std::min<size_t>(size, 4000), '.') + '"');
    const std::string tools =
        words(size, R"({"type":"function","function":{"name":"f)",
              R"(","parameters":{"properties":{"a":{"type":"string"},"b":{"enum":["x","y"]}}}}})",
              "[", "]");
    expect_bounded(
        "/v1/chat/completions", fmt::format("tools of {}", size),
        R"({"messages":[{"role":"user","content":"m"}],"tool_choice":"required","tools":)" + tools +
            "}");
  }
}

// The limits of all lists at once: as many prompts as the queue takes, with as many choices, each
// with the longest stop strings, ids and biases.
TEST_F(BodyMemory, OfEveryLimitAtOnceIsBounded) {
  std::string body = R"({"n":16,"max_tokens":1,"prompt":)" + list<kQueue>(1 << 20, R"("p")");
  body += ",\"stop\":" + list<16>(1 << 20, '"' + std::string(1024, 's') + '"');
  expect_bounded("/v1/completions", "prompt, n and stop", body + "}");
  body += ",\"allowed_token_ids\":" + ids(1 << 20, kVocabulary);
  body += ",\"logit_bias\":" + words(9000, "\"", "\":1", "{", "}");
  expect_bounded("/v1/completions", "prompt and everything", body + "}");
}

constexpr size_t kShort = size_t{256} << 10, kLongest = size_t{16} << 20;
// What stands around the lists of a body.
constexpr size_t kAround = size_t{16} << 10;
// Just more than what texts that grow by doubling have been grown to.
constexpr size_t kDoubled = (size_t{8} << 20) + (size_t{128} << 10);

void for_each_list(const Resource& resource, const auto& visit) {
  const std::vector<Filled> fields = lists_of(resource);
  for (size_t f = 0; f < fields.size(); ++f) visit(fields[f], f);
}

TEST_F(BodyMemory, OfOneListIsBounded) {
  for (const size_t size : {kShort, kDoubled, kLongest - kAround}) {
    if (testing::kSanitized && size > kShort) break;  // the same program as shipped takes seconds
    for (const Resource& resource : kResources) {
      for_each_list(resource, [&](const Filled& field, size_t f) {
        expect_bounded(resource.path, fmt::format("{} {}", field.name, f),
                       body_of(resource, {&field}, size));
      });
    }
  }
}

TEST_F(BodyMemory, OfTwoListsIsBounded) {
  // Short bodies are those of all pairs, and long ones take longer.
  size_t pairs = 0;
  const size_t step = testing::kSanitized ? 67 : 23;
  for (const Resource& resource : kResources) {
    for_each_pair(resource, [&](const Filled& one, const Filled& other, size_t a, size_t b) {
      const std::string name = fmt::format("{} {} and {} {}", one.name, a, other.name, b);
      expect_bounded(resource.path, name, body_of(resource, {&one, &other}, kShort / 2));
      if (++pairs % step != 0) return;
      expect_bounded(resource.path, name, body_of(resource, {&one, &other}, kLongest - kAround));
    });
  }
}

// Of a text whose bytes are tokens, of which as many are read as a prompt may have.
class BodyMemoryOfBytes : public BodyMemory {
 protected:
  BodyMemoryOfBytes() : BodyMemory(1) {}
};

TEST_F(BodyMemoryOfBytes, OfOneListIsBounded) {
  for (const size_t size : {kShort, size_t{1} << 20, size_t{2} << 20}) {
    if (testing::kSanitized && size > kShort) break;  // as above
    for (const Resource& resource : kResources) {
      for_each_list(resource, [&](const Filled& field, size_t f) {
        expect_bounded(resource.path, fmt::format("{} {}", field.name, f),
                       body_of(resource, {&field}, size - kAround));
      });
    }
  }
}

}  // namespace recurve::http_body_memory_test
