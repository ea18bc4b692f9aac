#pragma once
#include "recurve/v1/control.grpc.pb.h"
#include "server/rpc/headers_first.h"
#include "server/rpc/service_context.h"

namespace recurve {

// Model, load and drain of the server. Its requests have no strings, so gRPC may parse them.
class ControlService final
    : public HeadersFirstService<ControlService, v1::Control::CallbackService> {
 public:
  explicit ControlService(ServiceContext& context);

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* call,
                                         const v1::GetModelInfoRequest* request,
                                         v1::ModelInfo* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* call,
                                          const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* call,
                                    const v1::GetLoadRequest* request, v1::Load* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* call,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;

 private:
  Refused may_operate(const grpc::CallbackServerContext* call, Role least, Identity* caller) const;

  ServiceContext& context_;
};

}  // namespace recurve
