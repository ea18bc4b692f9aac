#include "server/http/openai/embeddings.h"

#include <fmt/format.h>

#include <bit>
#include <iterator>
#include <utility>

#include "server/http/body_fields.h"
#include "server/http/connection.h"
#include "server/http/openai/fields/field_table.h"
#include "server/identity/base64.h"
#include "server/serving/gathered_answer.h"

namespace recurve {
namespace {

constexpr std::string_view kIdLists[] = {"input"};

using Input = decltype(EmbedRequest::inputs)::value_type;

Input take_input(ClientJson& input) {
  if (input.is_string()) return std::move(input.get_ref<std::string&>());
  return take_ids_of(input, "input");
}

void take_inputs(ClientJson& body, EmbedRequest* asked) {
  ClientJson* input = find(body, "input");
  if (input == nullptr) throw BadField("input", "input must be given");
  if (!input->is_array()) {
    asked->inputs.push_back(take_input(*input));
    return;
  }
  if (input->size() > kMaxEmbedInputs) {  // before each takes memory
    throw BadField("input", fmt::format("input must be 1 to {} texts or lists of ids, got {}",
                                        kMaxEmbedInputs, input->size()));
  }
  asked->inputs.reserve(input->size());
  for (ClientJson& one : *input) asked->inputs.push_back(take_input(one));
}

Pooling pooling_of(const ClientJson& body) {
  const std::string name = string_of(body, "pooling").value_or("last");
  if (name == "last") return Pooling::kLast;
  if (name == "mean") return Pooling::kMean;
  throw BadField("pooling",
                 fmt::format("pooling must be \"last\" or \"mean\", got \"{}\"", cut(name)));
}

bool is_base64(const ClientJson& body) {
  const std::string name = string_of(body, "encoding_format").value_or("float");
  if (name == "float" || name == "base64") return name == "base64";
  throw BadField(
      "encoding_format",
      fmt::format("encoding_format must be \"float\" or \"base64\", got \"{}\"", cut(name)));
}

// Of the values as little-endian floats.
std::string_view bytes_of(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace

Refused read_embed_request(std::string body, const WorkLimits& limits, const ServerCore& core,
                           const Identity& caller, EmbedRequest* asked, bool* base64) {
  const auto read = [&](ClientJson& fields) {
    take_inputs(fields, asked);
    asked->pooling = pooling_of(fields);
    asked->dimensions = int32_of(fields, "dimensions");
    asked->add_special_tokens = bool_of(fields, "add_special_tokens").value_or(true);
    asked->adapter = string_of(fields, "adapter").value_or("");
    asked->priority = int32_of(fields, "priority").value_or(0);
    *base64 = is_base64(fields);
  };
  return read_body(std::move(body), limits, table_of(OpenAiResource::kEmbeddings), kIdLists,
                   {core, &asked->model, caller}, read);
}

Route::Begin Embeddings::handler(ServerCore& core) {
  return [&core](std::shared_ptr<Connection> connection, HttpRequest request) {
    return std::make_shared<Embeddings>(std::move(connection), core, std::move(request));
  };
}

Embeddings::Embeddings(std::shared_ptr<Connection> connection, ServerCore& core,
                       HttpRequest request)
    : Exchange(std::move(connection)), core_(core), request_(std::move(request)) {}

// A label does not decide whether a request is answered: one that is in use is replaced.
void Embeddings::begin() {
  self_ = alive_ = std::static_pointer_cast<Embeddings>(shared_from_this());
  call_ = new Embedding(core_, *this);
  while (!core_.registry.name(request_.caller.tenant, request_.request_id, call_)) {
    request_.request_id = make_name("r-");
  }
  call_->open(request_.caller,
              {.bytes = static_cast<int64_t>(request_.body.size()), .is_named = true},
              request_.request_id);
}

Refused Embeddings::read(EmbedRequest* asked) {
  return guarded("input", [&] {
    if (Refused refused = read_deadline(request_, Clock::now(), &deadline_)) return refused;
    Refused refused = read_embed_request(std::exchange(request_.body, {}), core_.limits(nullptr),
                                         core_, request_.caller, asked, &base64_);
    return refused ? refused : reserve_object(*asked);
  });
}

Refused Embeddings::reserve_object(const EmbedRequest& asked) {
  constexpr size_t kHead = 1024, kEach = 64, kFloat = 16, kInBase64 = 6;  // bytes, at most
  int32_t dimensions = 0;
  model_name_ = asked.model.name();
  if (Refused refused = check_dimensions(asked, asked.model->text, &dimensions)) return refused;
  const size_t value = base64_ ? kInBase64 : kFloat;
  const size_t bytes =
      kHead + asked.inputs.size() * (kEach + static_cast<size_t>(dimensions) * value);
  // The response is made of the object, with a head.
  const auto twice = static_cast<int64_t>(2 * bytes);
  if (Refused refused = reserve_answer(core_, request_.caller, "input", twice, &object_share_)) {
    return refused;
  }
  object_.reserve(bytes);
  object_ = R"({"object":"list","data":[)";
  return {};
}

void Embeddings::send(EmbedEvent event) {
  if (const auto* one = std::get_if<Embedded>(&event)) return append(*one);
  if (const auto* end = std::get_if<EmbedEnd>(&event)) {
    const int64_t tokens = end->usage.prompt_tokens;
    object_ += fmt::format(R"(],"model":{},"usage":{{"prompt_tokens":{},"total_tokens":{}}}}})",
                           dump(nlohmann::json(model_name_)), tokens, tokens);
  }
}

void Embeddings::append(const Embedded& one) {
  object_ += fmt::format(R"({}{{"object":"embedding","index":{},"embedding":)",
                         one.input > 0 ? "," : "", one.input);
  if (base64_) {
    object_ += '"';
    append_base64(bytes_of(one.values), &object_);
    object_ += "\"}";
  } else {
    fmt::format_to(std::back_inserter(object_), "[{}]}}", fmt::join(one.values, ","));
  }
}

std::string Embeddings::peer() const { return connection_->peer(); }

void Embeddings::cut() { connection_->cut(); }

void Embeddings::finish(const Refused& refusal) {
  finishing_ = true;
  refusal_ = refusal;
}

void Embeddings::flush() {
  if (!finishing_ || std::exchange(finished_, true)) return;
  std::string bytes = refusal_ ? refusal_response(request_, *refusal_)
                               : json_response(request_, std::exchange(object_, {}));
  connection_->write(self_, std::move(bytes), /*last=*/true);
}

void Embeddings::client_left() { call_->disconnected(); }

void Embeddings::done() {
  const auto alive = std::move(self_);
  object_share_ = {};
  call_->done();  // before it, the call may cut the connection
  connection_.reset();
}

void Embeddings::released() { const auto alive = std::move(alive_); }

}  // namespace recurve
