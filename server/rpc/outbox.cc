#include "server/rpc/outbox.h"

#include <utility>

#include "server/rpc/messages.h"

namespace recurve {

void Outbox::push(const google::protobuf::Message& message) {
  messages_.push_back(serialize(message));
}

bool Outbox::writing() {
  if (!writing_) return false;
  more_ = true;
  return writing_;
}

bool Outbox::written() {
  writing_ = false;
  return more_.exchange(false);
}

Outbox::Next Outbox::next() {
  if (messages_.empty()) {
    if (!status_) return Next::kNothing;
    finished_ = true;
    return Next::kFinish;
  }
  current_ = std::move(messages_.front());
  messages_.pop_front();
  if (status_ && messages_.empty()) {
    finished_ = true;
    return Next::kWriteLast;
  }
  if (status_ || !messages_.empty()) more_ = true;
  writing_ = true;
  return Next::kWrite;
}

}  // namespace recurve
