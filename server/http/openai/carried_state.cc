#include "server/http/openai/carried_state.h"

#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/responses/stored_responses.h"
#include "server/identity/base64.h"
#include "server/serving/bind.h"

namespace recurve {
namespace {

using Kind = SessionCommand::Kind;

// Bytes of an answer's memory for each of a state: itself, then base64 in the object, in its text
// and in the response.
constexpr int64_t kCopies = 5;

}  // namespace

void CarriedState::read(ClientJson& body) {
  returns_ = bool_of(body, "return_state").value_or(false);
  const auto text = take_string(body, "state");
  if (!text) return;
  given_ = decoded_base64(*text);
  if (!given_) throw BadField("state", "state must be a serialized state in base64");
}

Refused CarriedState::apply(std::vector<TextRequest>* asked) {
  if (!is_used()) return {};
  const char* field = given_ ? "state" : "return_state";
  TextRequest& one = asked->front();
  model_ = one.model;
  if (asked->size() > 1 || one.choices > 1) {
    return invalid(field, "{} needs one prompt with n 1", field);
  }
  if (!one.session.empty()) {
    return invalid(field,
                   "{} must be left out with a session: GET and PUT /v1/sessions/NAME/state have "
                   "its state",
                   field);
  }
  id_ = make_name("carried-");
  one.session = id_;
  one.session_is_kept = true;
  if (given_ && !one.chosen.initial_state.empty()) {
    return invalid("initial_state", "initial_state must be left out with a state");
  }
  Refused refused = choose_adapter(model_, &one.chosen);
  chosen_ = one.chosen;
  if (!refused && returns_) refused = check_size(model_->info.state_bytes);
  if (refused || !given_) return refused;
  SessionCommand command;
  refused = read_state(model_->info, *given_, /*cut=*/false, &command);
  if (refused) refused->field = "state";
  given_ = "";
  ready_ = std::move(command.state);
  return refused;
}

// A state of this size can never be returned.
Refused CarriedState::check_size(int64_t state_bytes) const {
  const int64_t most = core_.options.max_gathered_bytes / 2 / kCopies;
  if (state_bytes <= most) return {};
  return invalid("return_state",
                 "return_state must be false: the state takes {} bytes, and that of an answer at "
                 "most {}: use a session and GET /v1/sessions/NAME/state",
                 state_bytes, most);
}

bool CarriedState::open(Go go) {
  if (!is_used()) return true;
  SessionCommand command{.kind = ready_ != nullptr ? Kind::kImport : Kind::kOpen,
                         .caller = caller_,
                         .name = reserved_name(id_),
                         .chosen = chosen_,
                         .state = std::move(ready_)};
  command.done = [this, go](SessionResult result) {
    core_.delivery_threads.post([this, go, result = std::move(result)] {
      opened_ = result.reason == EndReason::kDone;
      go(refusal_of(result));
    });
  };
  if (const Refused refused = model_->post(std::move(command))) go(refused);
  return false;
}

bool CarriedState::take(Go go) {
  if (!returns_) return true;
  SessionCommand command{.kind = Kind::kExport, .caller = caller_, .name = reserved_name(id_)};
  command.done = [this, go](SessionResult result) {
    core_.text_threads.post([this, go, result = std::move(result)] {
      go(guarded("return_state", [&] {
        Refused refused = refusal_of(result);
        return refused ? refused : encode(*result.state);
      }));
    });
  };
  if (Refused refused = model_->post(std::move(command))) {
    core_.text_threads.post([go, refused = std::move(refused)] { go(refused); });
  }
  return false;
}

Refused CarriedState::encode(StateSource& state) {
  const auto bytes = static_cast<int64_t>(state.bytes());
  if (Refused refused = check_size(bytes)) return refused;
  share_ = core_.gathered_bytes.take(kCopies * bytes, caller_.share());
  if (!share_) {
    return refuse(EndReason::kExhausted,
                  "not enough memory for the state in the answer: try again later");
  }
  std::string written(static_cast<size_t>(bytes), '\0');
  state.read(0, written);
  append_base64(written, &taken_);
  return {};
}

void CarriedState::close() {
  if (std::exchange(opened_, false)) close_stored(core_, caller_.tenant, id_);
}

}  // namespace recurve
