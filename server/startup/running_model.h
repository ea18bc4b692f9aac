#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/engine/engine.h"
#include "server/prefix_store/prefix_store.h"
#include "server/serving/server_core.h"
#include "server/startup/loaded_model.h"
#include "server/startup/store_access.h"

namespace recurve {

// What ServerCore has of a model.
struct HostedModel {
  std::shared_ptr<ServedModel> served;
  ModelUse use = {};
};

// A model with all that only it has, in the order of its life.
class RunningModel {
 public:
  using OnFailure =
      std::function<void(const std::string& model, const char* what, bool others_serve)>;

  // Opens and locks the folder of its states, first, as loading takes long. store: null without
  // --state-store; outlives the model.
  RunningModel(Options options, ServerCore& core, HostedModel hosted, StoreAccess* store);
  ~RunningModel();
  RunningModel(const RunningModel&) = delete;
  RunningModel& operator=(const RunningModel&) = delete;

  // In this order, each once. load() throws as load_served_model() does.
  void load(const PlannedModel& planned, std::unique_ptr<Backend> backend, const StopSignal& stop);
  void make_engine(const OnFailure& on_failure);
  void start_engine();
  void stop_engine();
  // The engine ends its requests with kDraining. Before stop_engine(), any thread.
  void abandon() { engine_->abandon(); }

  const std::string& name() const { return name_; }
  const Options& options() const { return options_; }
  PlannedModel planned() const { return {.plan = loaded_.plan, .slots = loaded_.info.slots}; }
  const LoadedModel& loaded() const { return loaded_; }
  const std::shared_ptr<ServedModel>& served() const { return hosted_.served; }
  ModelUse& use() { return hosted_.use; }
  std::string table() const;

 private:
  struct StateFolder;
  void share_prefixes(EngineOptions* options);

  const Options options_;
  const std::string name_;
  ServerCore& core_;
  HostedModel hosted_;
  StoreAccess* const store_;
  const std::shared_ptr<ModelMetrics> metrics_;
  std::unique_ptr<StateFolder> folder_;
  std::shared_ptr<Backend> backend_;
  LoadedModel loaded_;
  std::optional<PrefixStore> prefix_store_;
  std::optional<Engine> engine_;
  bool runs_ = false;
};

}  // namespace recurve
