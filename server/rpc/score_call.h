#pragma once
#include <grpcpp/support/server_callback.h>

#include <atomic>

#include "recurve/v1/inference.pb.h"
#include "server/rpc/stream_call.h"
#include "server/serving/scoring.h"

namespace recurve {

// One Score call. Deletes itself.
class ScoreCall final
    : public StreamCall<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>, ScoreSink> {
 public:
  ScoreCall(ServiceContext& context, grpc::CallbackServerContext* call);

  void OnReadDone(bool ok) override;

 private:
  void ask() override { StartRead(&incoming_); }
  Arrival arrived() override { return arrived_.exchange(Arrival::kNothing); }
  int64_t piece_bytes() const override { return static_cast<int64_t>(incoming_.Length()); }
  Refused read(ScorePiece* piece) override;
  void send(ScoreEvent event) override;

  void write(const RequestAccepted& accepted);
  void write(const ScoreProgress& progress);
  void write(const ScoreEnd& end);

  grpc::ByteBuffer incoming_;
  std::atomic<Arrival> arrived_{Arrival::kNothing};
};

}  // namespace recurve
