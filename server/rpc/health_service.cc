// SPDX-License-Identifier: Apache-2.0
#include "rpc/health_service.h"

#include <algorithm>
#include <utility>

namespace normserve::rpc {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One Watch call: writes the newest status; one that is overtaken while a write is in flight is
// skipped.
class HealthService::Watcher final : public grpc::ServerWriteReactor<HealthCheckResponse>,
                                     public std::enable_shared_from_this<Watcher> {
 public:
  explicit Watcher(HealthService* service) : service_(service) {}

  void Hold() { self_ = shared_from_this(); }

  void Update(Status status) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (ending_ || wanted_ == status) return;
      wanted_ = status;
      has_wanted_ = true;
    }
    Advance();
  }

  void End(grpc::Status status) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (ending_) return;
      ending_ = true;
      end_status_ = std::move(status);
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      busy_ = false;
      if (!ok) ending_ = true;
    }
    Advance();
  }
  void OnCancel() override { End(grpc::Status(grpc::StatusCode::CANCELLED, "watch cancelled")); }
  void OnDone() override {
    HealthService* service = nullptr;
    {
      // Finish orders this after all else; the mutex lets ThreadSanitizer see it.
      const std::lock_guard<std::mutex> lock(mutex_);
      service = service_;
    }
    service->Remove(this);
    self_.reset();  // may delete this
  }

 private:
  // Starts the next operation unless one is in flight.
  void Advance() {
    bool write = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (busy_ || !(has_wanted_ || ending_)) return;
      busy_ = true;
      write = has_wanted_;
      has_wanted_ = false;
      if (write) response_.set_status(wanted_);
    }
    if (write) {
      StartWrite(&response_);
    } else {
      Finish(end_status_);
    }
  }

  HealthService* const service_;
  std::shared_ptr<Watcher> self_;  // until OnDone
  std::mutex mutex_;
  bool busy_ = false;  // a write, or the end, is in flight
  bool has_wanted_ = false;
  bool ending_ = false;
  Status wanted_ = HealthCheckResponse::UNKNOWN;
  grpc::Status end_status_;
  HealthCheckResponse response_;
};

HealthService::HealthService(std::vector<std::string> names) : names_(std::move(names)) {}
// The server has ended all calls before; as above, for ThreadSanitizer.
HealthService::~HealthService() { const std::lock_guard<std::mutex> lock(mutex_); }

bool HealthService::Known(const std::string& name) const {
  return name.empty() || std::find(names_.begin(), names_.end(), name) != names_.end();
}

void HealthService::SetServing() { SetAll(HealthCheckResponse::SERVING); }

void HealthService::Freeze() { SetAll(HealthCheckResponse::NOT_SERVING); }

void HealthService::SetAll(Status status) {
  // Under the mutex, so that watchers see changes in their order; Update never waits.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (frozen_) return;
  frozen_ = status == HealthCheckResponse::NOT_SERVING;
  status_ = status;
  for (const auto& watcher : watchers_) watcher->Update(status);
}

void HealthService::EndWatches() {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    watchers = watchers_;
    watchers.insert(watchers.end(), strangers_.begin(), strangers_.end());
  }
  for (const auto& watcher : watchers) {
    watcher->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  }
}

void HealthService::Remove(const Watcher* watcher) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto* list : {&watchers_, &strangers_}) {
    list->erase(std::remove_if(list->begin(), list->end(),
                               [&](const auto& other) { return other.get() == watcher; }),
                list->end());
  }
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!Known(request->service())) {
    reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND,
                                 "service: no service '" + request->service() + "' here"));
    return reactor;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    response->set_status(status_);
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  auto watcher = std::make_shared<Watcher>(this);
  watcher->Hold();
  const bool known = Known(request->service());
  bool ended = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended = ended_;
    watcher->Update(known ? status_ : HealthCheckResponse::SERVICE_UNKNOWN);
    (known ? watchers_ : strangers_).push_back(watcher);
  }
  if (ended) {
    watcher->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  }
  return watcher.get();
}

}  // namespace normserve::rpc
