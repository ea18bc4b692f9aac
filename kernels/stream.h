#pragma once

namespace recurve {

// Work in order. Host backends finish each call before it returns.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void wait() = 0;  // until all work queued so far is done
};

}  // namespace recurve
