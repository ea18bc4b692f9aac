#pragma once
#include <memory>
#include <utility>

#include "server/http/message.h"

namespace recurve {

class Connection;

// A request that is not answered at once, and its response. Its connection tells it what happens to
// the client; it passes bytes to the connection by write() and answer_done().
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  virtual ~Exchange() = default;

  // On the connection's thread. begin() holds a reference to itself until done().
  virtual void begin() = 0;
  virtual void written(bool ok) = 0;  // the bytes of write() were sent, or cannot be
  virtual void silent() {}            // nothing has been written for HttpTimes::silence
  virtual void client_left() = 0;     // once or more
  // The connection has finished with it. What it holds of the server's budgets is released here:
  // another thread may have the last reference for a moment longer.
  virtual void done() = 0;

 protected:
  explicit Exchange(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  std::shared_ptr<Connection> connection_;  // until done()
};

}  // namespace recurve
