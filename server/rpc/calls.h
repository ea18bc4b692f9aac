#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/rpc/service_context.h"

namespace recurve {

// The streaming calls, which delete themselves. Request and response are valid until OnDone().
grpc::ServerWriteReactor<grpc::ByteBuffer>* generate(ServiceContext& context,
                                                     grpc::CallbackServerContext* call,
                                                     const grpc::ByteBuffer* request);
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* score(
    ServiceContext& context, grpc::CallbackServerContext* call);
grpc::ServerWriteReactor<grpc::ByteBuffer>* embed(ServiceContext& context,
                                                  grpc::CallbackServerContext* call,
                                                  const grpc::ByteBuffer* request);
grpc::ServerWriteReactor<grpc::ByteBuffer>* export_state(ServiceContext& context,
                                                         grpc::CallbackServerContext* call,
                                                         const grpc::ByteBuffer& request);
grpc::ServerReadReactor<grpc::ByteBuffer>* import_state(ServiceContext& context,
                                                        grpc::CallbackServerContext* call,
                                                        grpc::ByteBuffer* response);

}  // namespace recurve
