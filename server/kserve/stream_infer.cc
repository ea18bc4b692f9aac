#include "server/kserve/stream_infer.h"

#include "server/rpc/messages.h"

namespace recurve {

InferStream::InferStream(ServiceContext& context, grpc::CallbackServerContext* call)
    : context_(context), call_(call) {
  read_or_finish(std::unique_lock(mutex_));
}

// Reads the next request if possible, or finishes once the client sends no more and all requests
// have ended.
void InferStream::read_or_finish(std::unique_lock<std::mutex> lock) {
  if (reading_ == Reading::kWanted && !parsing_ && calls_.size() < kMostCalls) {
    reading_ = Reading::kUnderWay;
    lock.unlock();
    return StartRead(&incoming_);
  }
  if (reading_ != Reading::kEnded || !calls_.empty() || finished_) return;
  finished_ = true;
  lock.unlock();
  Finish(grpc::Status::OK);
}

void InferStream::OnReadDone(bool ok) {
  std::unique_lock lock(mutex_);
  if (!ok) {
    reading_ = Reading::kEnded;
    return read_or_finish(std::move(lock));
  }
  reading_ = Reading::kWanted;
  parsing_ = true;
  const auto call = std::make_shared<StreamedInfer>(context_, *call_, *this, std::move(incoming_));
  incoming_ = grpc::ByteBuffer();
  calls_.insert(call);
  const bool cancelled = cancelled_;
  lock.unlock();
  if (cancelled) call->cancel();
  call->start();
}

void InferStream::was_read(StreamedInfer& call) {
  const auto self = std::static_pointer_cast<StreamedInfer>(call.shared_from_this());
  const std::string& session = call.request().sequence.session;
  std::unique_lock lock(mutex_);
  parsing_ = false;
  bool first = true;
  if (!session.empty()) {
    const auto [sequence, is_new] = sequences_.try_emplace(session);
    first = is_new;
    if (!first) sequence->second.push_back(self);
  }
  read_or_finish(std::move(lock));
  if (first) call.go();
}

void InferStream::over(const std::shared_ptr<StreamedInfer>& call) {
  std::shared_ptr<StreamedInfer> next;
  std::unique_lock lock(mutex_);
  calls_.erase(call);
  const auto sequence = sequences_.find(call->request().sequence.session);
  if (sequence != sequences_.end()) {
    if (sequence->second.empty()) {
      sequences_.erase(sequence);
    } else {
      next = std::move(sequence->second.front());
      sequence->second.pop_front();
    }
  }
  read_or_finish(std::move(lock));
  if (next != nullptr) next->go();
}

void InferStream::write(std::shared_ptr<StreamedInfer> call, grpc::ByteBuffer message) {
  std::unique_lock lock(mutex_);
  outbox_.emplace_back(std::move(call), std::move(message));
  if (!writing_) write_next(std::move(lock));
}

// The response that is being written stays at the front.
void InferStream::write_next(std::unique_lock<std::mutex> lock) {
  writing_ = !outbox_.empty();
  if (!writing_) return;
  outgoing_ = std::move(outbox_.front().second);
  lock.unlock();
  StartWrite(&outgoing_);
}

void InferStream::OnWriteDone(bool ok) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<StreamedInfer> call = std::move(outbox_.front().first);
  outbox_.pop_front();
  write_next(std::move(lock));
  call->written(ok);
}

void InferStream::OnCancel() {
  Calls calls;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    calls = calls_;
  }
  for (const auto& call : calls) call->cancel();
}

bool StreamedInfer::busy() {
  if (!writing_) return false;
  more_ = true;
  return writing_;
}

void StreamedInfer::written(bool ok) {
  writing_ = false;
  if (!ok) cancel();
  if (more_.exchange(false)) poke();
}

void StreamedInfer::respond(inference::ModelInferResponse response) {
  inference::ModelStreamInferResponse message;
  *message.mutable_infer_response() = std::move(response);
  responses_.push_back(serialize(message));
}

// The stream continues: the id tells which request has failed.
void StreamedInfer::conclude(const Refused& refusal) {
  if (!refusal) return;
  inference::ModelStreamInferResponse message;
  message.set_error_message(recurve::cut(refusal->message, kMostSaid));
  inference::ModelInferResponse& response = *message.mutable_infer_response();
  response.set_id(request_.form.id);
  (*response.mutable_parameters())["triton_final_response"].set_bool_param(true);
  responses_.push_back(serialize(message));
}

void StreamedInfer::flush() {
  if (finished_) return;
  if (cancelled()) responses_.clear();
  const auto self = std::static_pointer_cast<StreamedInfer>(shared_from_this());
  const bool last = finishing_ && responses_.size() <= 1 && may_conclude();
  if (!responses_.empty() && (!finishing_ || responses_.size() > 1 || last)) {
    grpc::ByteBuffer message = std::move(responses_.front());
    responses_.pop_front();
    writing_ = true;
    if (finishing_ || !responses_.empty()) more_ = true;  // more follows, or the end
    return stream_.write(self, std::move(message));
  }
  if (!last) return;
  finished_ = true;
  stream_.over(self);
  done();
}

}  // namespace recurve
