#pragma once
#include <exception>
#include <new>

#include "server/http/body_fields.h"
#include "server/observe/log.h"
#include "server/request/refusal.h"
#include "server/text/tokenizer.h"
#include "server/text/work_limits.h"

namespace recurve {

inline Refusal client_went() {
  return {.code = Refusal::Code::kCancelled, .message = "the client went away"};
}

inline Refusal no_memory() {
  return {.code = Refusal::Code::kExhausted,
          .message = "the system gives no memory for the request: try again later"};
}

// What work on a request comes to, whatever it throws. `field`: what is wrong with a text that
// cannot be read.
template <typename Work>
Refused guarded(const char* field, const Work& work) {
  try {
    return work();
  } catch (const BadField& error) {
    return invalid(error.field, "{}", error.what());
  } catch (const WorkUnwanted&) {
    return client_went();
  } catch (const TextRefused& error) {
    return invalid(field, "{}", error.what());
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::exception& error) {
    log_event(LogLevel::kError, "request_failed", {{"what", error.what()}});
    return Refusal{.code = Refusal::Code::kInternal,
                   .message = "the server has failed on the request"};
  }
}

}  // namespace recurve
