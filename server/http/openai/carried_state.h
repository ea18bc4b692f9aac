#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/http/message.h"
#include "server/request/byte_budget.h"
#include "server/serving/server_core.h"
#include "server/serving/text_request.h"
#include "server/text/json/client_json.h"

namespace recurve {

// The state that a client carries from request to request, so that the server stores none: `state`
// of a body is what a request starts from, and with `return_state` the answer has the state after
// it. Both are serialized states, as exports of sessions are, in base64. Meanwhile the state is
// that of an internal session. One thread at a time.
class CarriedState {
 public:
  using Go = std::function<void(Refused)>;  // called once, from any thread

  // `core` outlives it.
  CarriedState(ServerCore& core, Identity caller) : core_(core), caller_(std::move(caller)) {}

  // Reads both fields. Throws BadField.
  void read(ClientJson& body);
  bool is_used() const { return returns_ || given_; }
  // Checks the state that was given, as an import, and puts the only request into the session. The
  // requests have their model.
  Refused apply(std::vector<TextRequest>* asked);

  // Opens the session. True: none is needed, and `go` is not called.
  bool open(Go go);
  // After the answer: takes the state out of the session. True as above. Keeps `go` for a moment
  // even where it fails at once, so that the caller may hold a lock.
  bool take(Go go);
  // The state after the answer, in base64; empty: not wanted.
  const std::string& taken() const { return taken_; }
  // Closes the session, if one was opened.
  void close();

 private:
  Refused check_size(int64_t state_bytes) const;
  Refused encode(StateSource& state);

  ServerCore& core_;
  FoundModel model_;  // of the requests
  const Identity caller_;
  bool returns_ = false, opened_ = false;
  std::optional<std::string> given_;         // until apply(), which leaves it empty
  BindingNames chosen_;                      // of a session that begins with no given state
  std::shared_ptr<const ReadyState> ready_;  // null: the session begins with nothing
  std::string id_;
  std::string taken_;
  ByteBudget::Share share_;  // for taken_ and its copies in the answer
};

}  // namespace recurve
