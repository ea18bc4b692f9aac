#pragma once
#include <optional>
#include <string>

#include "kserve/v2/inference.pb.h"
#include "server/request/clock.h"
#include "server/request/refusal.h"
#include "server/serving/text_request.h"

namespace recurve {

// The version that every model has here.
inline constexpr const char* kModelVersion = "1";

// The tensors of an answer, and whether a request that names no outputs gets them: text_output it
// does, the others where an input asks for them.
struct InferOutputs {
  bool text = true;
  bool finish_reason = false;
  bool cumulative_logprob = false;
  bool logprobs = false;
  bool num_input_tokens = false;
  bool num_output_tokens = false;
  bool ids = false;
};

// How an answer is to be written.
struct InferForm {
  std::string id = {};      // comes back in each response
  bool raw = false;         // tensors as bytes, as the request had its own
  bool stream = false;      // in pieces, as they come
  std::string prefix = {};  // in front of each choice's text
  size_t choices = 1;
  InferOutputs outputs = {};
};

// A sequence is a session.
struct InferSequence {
  std::string session = {};  // empty: none
  bool start = false;        // opens it before
  bool end = false;          // closes it behind the answer
};

// What a ModelInferRequest says, as all doors have it, and what only this one has.
struct InferRequest {
  TextRequest asked = {};
  InferForm form = {};
  InferSequence sequence = {};
  std::optional<Clock::duration> timeout = {};
};

// Reads a request, from which long texts are moved. `model`: the name served. Refused is what
// cannot be read; what is out of its range is refused later, as for every door. Of `to`, form.id
// and sequence.session are set in any case, if they could be read.
Refused read_infer_request(inference::ModelInferRequest&& message, const std::string& model,
                           InferRequest* to);

// Refuses a name that is not that of the model served, and a version that there is not.
Refused check_model(const std::string& name, const std::string& version, const std::string& served);

}  // namespace recurve
