#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "kserve/v2/inference.pb.h"
#include "server/request/clock.h"
#include "server/request/refusal.h"
#include "server/serving/server_core.h"
#include "server/serving/text_request.h"
#include "server/text/json/client_json.h"

namespace recurve {

// The version of every model.
inline constexpr const char* kModelVersion = "1";

// The tensors of an answer, and the default: text_output, and those that an input requests.
struct InferOutputs {
  bool text = true;
  bool finish_reason = false;
  bool cumulative_logprob = false;
  bool logprobs = false;
  bool num_input_tokens = false;
  bool num_output_tokens = false;
  bool ids = false;
};

// The form of an answer.
struct InferForm {
  std::string id = {};      // repeated in each response
  bool raw = false;         // tensors as bytes, like those of the request
  bool stream = false;      // in parts, as they are generated
  std::string prefix = {};  // in front of each choice's text
  size_t choices = 1;
  InferOutputs outputs = {};
};

// A sequence is a session.
struct InferSequence {
  std::string session = {};  // empty: none
  bool start = false;        // opens it before the request
  bool end = false;          // closes it after the answer
};

// A ModelInferRequest as a TextRequest, and what only this protocol has.
struct InferRequest {
  TextRequest asked = {};
  InferForm form = {};
  InferSequence sequence = {};
  std::optional<Clock::duration> timeout = {};
};

// Converts a request, whose model it finds; long texts are moved out of it. Refuses a malformed
// request; values out of range are refused later, as for every frontend. form.id and
// sequence.session of `to` are set for a refused request too, if they could be read.
Refused read_infer_request(inference::ModelInferRequest&& message, const ServerCore& core,
                           InferRequest* to);

// Finds a model by its name, which must be given, and its version. `of_failed`: see ModelChoice.
Refused find_model(const ServerCore& core, const std::string& name, const std::string& version,
                   const Identity& caller, FoundModel* found, bool of_failed = false);

// Reads sampling parameters and stop conditions with the names of vLLM's backend of Triton: see the
// table in the source. Numbers may be strings, as in that backend's example. Parameters that would
// change the answer and are not supported are refused by name; other names are ignored. Throws a
// Refusal.
void read_sampling(const ClientJson& parameters, TextRequest* asked);
// The same from JSON.
void read_sampling(std::string_view json, TextRequest* asked);

// The default of max_tokens, as in that backend.
inline constexpr int32_t kDefaultInferTokens = 16;

}  // namespace recurve
