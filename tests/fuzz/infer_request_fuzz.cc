// Any bytes as a ModelInferRequest: refused with a sentence, or turned into a request for an answer
// whose form keeps its promises.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "kernels/check.h"
#include "server/kserve/infer_request.h"
#include "server/kserve/tensors.h"
#include "server/rpc/messages.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

// With the model "books".
ServerCore& core() {
  static Metrics metrics;
  static ServerCore made({.delivery_threads = 1, .text_threads = 1},
                         {std::make_shared<ServedModel>(16)}, metrics);
  static const bool served = [] {
    made.serve(*made.models().front(), std::make_shared<IdTokenizer>(256), {.model_name = "books"});
    return true;
  }();
  CHECK(served);
  return made;
}

void check_promises(const InferRequest& request) {
  const InferForm& form = request.form;
  CHECK(form.choices >= 1);
  CHECK(!form.outputs.ids || request.asked.choices == 1);
  CHECK(form.prefix.empty() || !form.stream);
  CHECK(!request.sequence.session.empty() || (!request.sequence.start && !request.sequence.end));
  CHECK(request.asked.session == request.sequence.session);
  CHECK(request.asked.max_tokens.has_value());
  const auto* text = std::get_if<std::string>(&request.asked.prompt);
  CHECK(text == nullptr || is_valid_utf8(*text));
}

}  // namespace
}  // namespace recurve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  inference::ModelInferRequest message;
  recurve::InferRequest request;
  recurve::Refused refused =
      recurve::parse(std::string_view(reinterpret_cast<const char*>(data), size), &message);
  if (!refused)
    refused = recurve::read_infer_request(std::move(message), recurve::core(), &request);
  if (!refused) {
    recurve::check_promises(request);
  } else {
    CHECK(refused->reason == recurve::EndReason::kInvalid ||
          refused->reason == recurve::EndReason::kNotFound);
    CHECK(!refused->message.empty());
  }
  return 0;
}
