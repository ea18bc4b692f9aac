#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/rpc/service_context.h"

namespace recurve {

// The streaming calls of Inference, which delete themselves. The request is valid until OnDone().
grpc::ServerWriteReactor<grpc::ByteBuffer>* generate(ServiceContext& context,
                                                     grpc::CallbackServerContext* call,
                                                     const grpc::ByteBuffer* request);
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* score(
    ServiceContext& context, grpc::CallbackServerContext* call);

}  // namespace recurve
