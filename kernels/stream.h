#pragma once

namespace recurve {

class StepAdapters;

// Work in order. Host backends finish each call before it returns.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void wait() = 0;  // until all work queued so far is done

  // The adapters of the rows of the step that is queued next; null: no row has one. Linear layers
  // ask for them. They outlive the step.
  void set_adapters(const StepAdapters* adapters) { adapters_ = adapters; }
  const StepAdapters* adapters() const { return adapters_; }

 private:
  const StepAdapters* adapters_ = nullptr;
};

}  // namespace recurve
