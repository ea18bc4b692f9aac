#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/serving/model_loader.h"
#include "server/startup/model_root.h"
#include "server/startup/running_model.h"

namespace recurve {

// The models of the process: those of the options, and with --model-root those that are loaded and
// unloaded while it serves, on a thread of this class.
class ModelHost final : public ModelLoader {
 public:
  // The models of the options have been given to the core. `on_failure` is called on engines'
  // threads. store: see RunningModel. Throws std::runtime_error.
  ModelHost(const Options& options, ServerCore& core, std::vector<HostedModel> models,
            const StopSignal& stop, RunningModel::OnFailure on_failure, StoreAccess* store);
  ~ModelHost();
  ModelHost(const ModelHost&) = delete;
  ModelHost& operator=(const ModelHost&) = delete;

  // In this order: plans and loads the models of the options; starts them.
  void load_models();
  void start_models();
  const std::list<RunningModel>& models() const { return models_; }
  // The change in progress ends soon, and all others are refused. Before the frontends end.
  void stop_changes();
  void stop_engines();

  Refused load(Load load, Done done) override;
  Refused unload(Unload unload, Done done) override;
  Changing changing() const override;

 private:
  struct Change {
    bool loads;
    std::string name;
    std::function<Refused()> run;
    Done done;
  };

  Refused post(const Identity& caller, Change change);
  void work();
  Refused load_now(const Load& load);
  Refused check_name(const std::string& name) const;
  void run_further(const Options& options);
  PlannedModel plan_further(const RunningModel& further, Backend& backend) const;
  void load_confined(RunningModel& model, std::unique_ptr<Backend> backend);
  Refused unload_now(const Unload& unload);
  void remove(std::list<RunningModel>::iterator model);
  bool drain(RunningModel& model, double seconds);

  const Options options_;
  ServerCore& core_;
  const StopSignal& stop_;
  const RunningModel::OnFailure on_failure_;
  StoreAccess* const store_;
  std::optional<ModelRoot> root_;
  std::list<RunningModel> models_;  // of the thread, while it runs

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<Change> changes_;  // the first one is in progress
  bool stopped_ = false;
  ModelUse* draining_ = nullptr;
  std::thread thread_;
};

}  // namespace recurve
