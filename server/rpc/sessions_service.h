#pragma once
#include "recurve/v1/sessions.grpc.pb.h"
#include "server/rpc/headers_first.h"
#include "server/rpc/service_context.h"

namespace recurve {

// The methods of Sessions, with messages as bytes: see messages.h.
template <typename S>
using RawSessions1 =
    v1::Sessions::WithRawCallbackMethod_Open<v1::Sessions::WithRawCallbackMethod_Get<
        v1::Sessions::WithRawCallbackMethod_List<v1::Sessions::WithRawCallbackMethod_Close<S>>>>;
template <typename S>
using RawSessions2 =
    v1::Sessions::WithRawCallbackMethod_Fork<v1::Sessions::WithRawCallbackMethod_Mark<
        v1::Sessions::WithRawCallbackMethod_Unmark<v1::Sessions::WithRawCallbackMethod_Rewind<S>>>>;

template <typename S>
using RawSessions3 = v1::Sessions::WithRawCallbackMethod_Export<
    v1::Sessions::WithRawCallbackMethod_Import<v1::Sessions::WithRawCallbackMethod_Accept<S>>>;

// Each call becomes a command to the engine, which owns the sessions.
class SessionsService final
    : public HeadersFirstService<SessionsService,
                                 RawSessions1<RawSessions2<RawSessions3<v1::Sessions::Service>>>> {
 public:
  explicit SessionsService(ServiceContext& context);

  using Call = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Reactor = grpc::ServerUnaryReactor;
  Reactor* Open(Call* call, const Bytes* request, Bytes* response) override;
  Reactor* Get(Call* call, const Bytes* request, Bytes* response) override;
  Reactor* List(Call* call, const Bytes* request, Bytes* response) override;
  Reactor* Close(Call* call, const Bytes* request, Bytes* response) override;
  Reactor* Fork(Call* call, const Bytes* request, Bytes* response) override;
  Reactor* Mark(Call* call, const Bytes* request, Bytes* response) override;
  Reactor* Unmark(Call* call, const Bytes* request, Bytes* response) override;
  Reactor* Rewind(Call* call, const Bytes* request, Bytes* response) override;
  Reactor* Accept(Call* call, const Bytes* request, Bytes* response) override;
  grpc::ServerWriteReactor<Bytes>* Export(Call* call, const Bytes* request) override;
  grpc::ServerReadReactor<Bytes>* Import(Call* call, Bytes* response) override;

 private:
  ServiceContext& context_;
};

}  // namespace recurve
