// SPDX-License-Identifier: Apache-2.0
// A request with the verdict on its bytes. gRPC's callback API answers UNIMPLEMENTED, before any code
// of ours, to what it cannot parse; with this as the request type every message reaches its handler.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>

namespace normserve::rpc {

template <typename Message>
struct Received {
  Message message;
  bool valid = false;  // whether `message` is all that was sent; else it is not to be used
};

}  // namespace normserve::rpc

template <typename Message>
class grpc::SerializationTraits<normserve::rpc::Received<Message>> {
 public:
  static Status Deserialize(ByteBuffer* bytes, normserve::rpc::Received<Message>* received) {
    // The call ended before its message came, mostly because it was cancelled: gRPC's to end.
    if (!bytes->Valid()) return Status(StatusCode::INTERNAL, "no message");
    received->valid = SerializationTraits<Message>::Deserialize(bytes, &received->message).ok();
    return Status::OK;
  }
};
