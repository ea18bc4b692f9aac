#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "server/kserve/infer_call.h"

namespace recurve {

class StreamedInfer;

// One ModelStreamInfer call: each request is a StreamedInfer, and their responses share the stream.
// Stops reading while kMostCalls run. Deletes itself. All methods may be called from any thread.
class InferStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // Concurrent requests; further ones are not read yet.
  static constexpr size_t kMostCalls = 128;

  InferStream(ServiceContext& context, grpc::CallbackServerContext* call);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

  // For its calls. A request has been read: it starts after the earlier ones of its sequence.
  void was_read(StreamedInfer& call);
  // Queues a response; calls written() after it was written. One at a time per call.
  void write(std::shared_ptr<StreamedInfer> call, grpc::ByteBuffer message);
  // The call has ended, and does not use the stream afterwards.
  void over(const std::shared_ptr<StreamedInfer>& call);

 private:
  using Calls = std::set<std::shared_ptr<StreamedInfer>>;

  void read_or_finish(std::unique_lock<std::mutex> lock);
  void write_next(std::unique_lock<std::mutex> lock);

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;

  // gRPC is never called with the lock held: it may call back at once.
  std::mutex mutex_;
  grpc::ByteBuffer incoming_, outgoing_;
  enum class Reading { kWanted, kUnderWay, kEnded } reading_ = Reading::kWanted;
  bool parsing_ = false;  // the last request: one at a time, in order
  bool writing_ = false, finished_ = false, cancelled_ = false;
  Calls calls_;
  std::deque<std::pair<std::shared_ptr<StreamedInfer>, grpc::ByteBuffer>> outbox_;
  // The waiting requests of each sequence that has a running one.
  std::map<std::string, std::deque<std::shared_ptr<StreamedInfer>>> sequences_;
};

// One request of such a stream.
class StreamedInfer final : public InferCall {
 public:
  StreamedInfer(ServiceContext& context, grpc::CallbackServerContext& call, InferStream& stream,
                grpc::ByteBuffer message)
      : InferCall(context, call, "inference.GRPCInferenceService/ModelStreamInfer",
                  std::move(message)),
        stream_(stream) {}

  // The stream's write() has ended.
  void written(bool ok);

  bool busy() override;
  size_t unsent() const override { return responses_.size(); }
  void discard() override { responses_.clear(); }
  void flush() override;

 private:
  void was_read() override { stream_.was_read(*this); }
  void respond(inference::ModelInferResponse response) override;
  void conclude(const Refused& refusal) override;

  InferStream& stream_;  // until over()
  // On the strand.
  std::deque<grpc::ByteBuffer> responses_;
  std::atomic<bool> writing_{false}, more_{false};
};

}  // namespace recurve
