#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/identity/identity.h"
#include "server/request/response_sink.h"

namespace recurve {

class Connection;

// A request as it has come, whole.
struct HttpRequest {
  Identity caller = kAnyone;
  std::vector<std::string> names = {};  // what stands in the target for each * of its route's path
  std::string query = {};               // behind the target's '?'
  std::string request_id = {};          // x-request-id, or one that was made
  CallOrigin origin = {};
  std::string session = {};        // x-recurve-session; empty: none, or in the body
  std::string timeout_ms = {};     // x-recurve-timeout-ms; empty: it may take as long as it likes
  std::string if_none_match = {};  // what the client has already; empty: nothing
  std::string body = {};
};

// A request that is not answered at once, and its response on its way back. Its connection tells it
// what happens to the client, and it tells the connection, by write() and answer_done(), what there
// is to say.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  virtual ~Exchange() = default;

  // On the connection's thread. Begins; holds itself until it is done().
  virtual void begin() = 0;
  virtual void written(bool ok) = 0;  // what went to write() is through, or cannot be
  virtual void silent() {}            // nothing has been written for HttpTimes::silence
  virtual void client_left() = 0;     // once or more
  virtual void done() = 0;            // the connection has nothing more to do with it

 protected:
  explicit Exchange(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  std::shared_ptr<Connection> connection_;  // until done()
};

}  // namespace recurve
