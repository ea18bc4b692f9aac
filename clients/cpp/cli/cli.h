#pragma once
#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <string>

#include "clients/cpp/cli/cli_interrupt.h"
#include "clients/cpp/client.h"
#include "clients/cpp/exit_code.h"

// The command line `recurve`. Each command has a function that adds it to the application and, when
// it was chosen, puts what it does into CliContext::run.
namespace recurve {

// Wrong use that the parser does not see, e.g. a file that cannot be read. Ends with kExitUsage.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What all commands share.
struct CliContext {
  std::string server = "127.0.0.1:50051";
  ClientTls tls;
  std::function<std::string()> key;  // which it shows; throws std::invalid_argument
  double timeout_seconds = 0;        // of each call; 0: none
  bool json = false;
  Interrupts interrupts;
  std::function<int()> run;  // the chosen command; gives the exit code

  Client client() const;  // throws UsageError for an address that is none
  CallOptions call_options(Canceller* canceller = nullptr) const;
};

void add_generate(CLI::App& app, CliContext& context);
void add_ask(CLI::App& app, CliContext& context);
void add_chat(CLI::App& app, CliContext& context);
void add_run(CLI::App& app, CliContext& context);
void add_embed(CLI::App& app, CliContext& context);
void add_score(CLI::App& app, CliContext& context);
void add_session(CLI::App& app, CliContext& context);
void add_tokenize(CLI::App& app, CliContext& context);
void add_detokenize(CLI::App& app, CliContext& context);
void add_abort(CLI::App& app, CliContext& context);
void add_info(CLI::App& app, CliContext& context);
void add_health(CLI::App& app, CliContext& context);
void add_models(CLI::App& app, CliContext& context);
void add_keys(CLI::App& app, CliContext& context);
void add_store(CLI::App& app, CliContext& context);
void add_state_keys(CLI::App& keys, CliContext& context);  // to the command `keys`

// "recurve: INVALID_ARGUMENT: ..." to standard error, and the hint on a separate line.
void print_error(const ClientError& error);

}  // namespace recurve
