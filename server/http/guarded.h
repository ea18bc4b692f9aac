#pragma once
#include <exception>
#include <new>

#include "server/http/body_fields.h"
#include "server/observe/log.h"
#include "server/request/refusal.h"
#include "server/text/tokenizers/tokenizer.h"
#include "server/text/work_limits.h"

namespace recurve {

// What work on a request comes to, whatever it throws. `field`: what is wrong with a text that
// cannot be read.
template <typename Work>
Refused guarded(const char* field, const Work& work) {
  try {
    return work();
  } catch (const BadField& error) {
    return invalid(error.field, "{}", error.what());
  } catch (const WorkUnwanted&) {
    return refuse(EndReason::kClientGone);
  } catch (const TextRefused& error) {
    return invalid(field, "{}", error.what());
  } catch (const std::bad_alloc&) {
    return refuse(EndReason::kNoMemory);
  } catch (const std::exception& error) {
    log_event(LogLevel::kError, "request_failed", {{"what", error.what()}});
    return refuse(EndReason::kInternal, "the server has failed on the request");
  }
}

}  // namespace recurve
