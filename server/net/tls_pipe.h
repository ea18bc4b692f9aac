#pragma once
#include <openssl/ssl.h>

#include <chrono>
#include <memory>
#include <string>

namespace recurve {

// A connection of TLS at one end and the same without it at the other: what comes at one goes out
// at the other, and as much of it waits here as fits a record. One thread at a time.
class TlsPipe {
 public:
  using Connection = std::unique_ptr<SSL, decltype(&SSL_free)>;
  using Time = std::chrono::steady_clock::time_point;

  // tcp: the descriptor of `tls`; it is closed with the pipe. name: what the end without TLS says
  // that its peer is called, an abstract one of this machine.
  TlsPipe(int tcp, Connection tls, std::string name);
  ~TlsPipe();
  TlsPipe(const TlsPipe&) = delete;
  TlsPipe& operator=(const TlsPipe&) = delete;

  // Carries what there is, in both directions. To be called once, and whenever either descriptor is
  // ready that was not. kMore: again, there was more than is done at once; so others have their
  // turn.
  enum class State { kOpen, kMore, kOver };
  State run();

  // Once the handshake is done, from the run() on that has ended it: the end that a door takes,
  // whose descriptor is then the taker's. -1: it is not, or that has been taken.
  int take_plain_end();

  // Of the certificate that the client has shown, once the handshake is done; empty: none.
  std::string subject() const;

  int tcp() const { return tcp_; }
  int plain() const { return plain_; }  // -1: the handshake is not done
  // What it is over at, if it is not before: the handshake takes too long, or the client does not
  // close what the door has closed.
  Time deadline() const { return deadline_; }
  // Why the handshake has failed; empty: it has not.
  const std::string& problem() const { return problem_; }

 private:
  // Bytes on their way in one direction.
  struct Way {
    std::string rest = {};  // read, and not written yet
    bool ended = false;     // nothing more is to be read
    bool closed = false;    // and the other end knows
  };

  bool shake_hands();
  bool open_plain();
  // Whether anything moved.
  bool carry_in();
  bool carry_out();
  void write_plain(const char* bytes, size_t size);
  void write_tls(const char* bytes, size_t size);
  void end_in();
  void end_out();

  const int tcp_;
  Connection tls_;
  const std::string name_;
  int plain_ = -1, to_take_ = -1;
  Way in_, out_;  // from the client, to the client
  bool failed_ = false;
  std::string problem_;
  Time deadline_;
};

}  // namespace recurve
