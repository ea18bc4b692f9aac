#include "clients/cpp/cli/cli_session.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_io.h"
#include "server/startup/flag_values.h"

namespace recurve {
namespace {

std::string tier_name(v1::SessionTier tier) {
  switch (tier) {
    case v1::SESSION_TIER_EMPTY:
      return "empty";
    case v1::SESSION_TIER_SLOT:
      return "slot";
    case v1::SESSION_TIER_HOST:
      return "host";
    case v1::SESSION_TIER_DISK:
      return "disk";
    default:
      return "unknown";
  }
}

std::string pending_text(const v1::Session& session) {
  return session.has_pending_token() ? std::to_string(session.pending_token()) : "none";
}

std::string ttl_text(const v1::Session& session) {
  return session.ttl_seconds() > 0 ? fmt::format("after {:.0f} s", session.ttl_seconds()) : "never";
}

std::string durability_text(const v1::Session& session) {
  const bool is_local = session.durability() == v1::DURABILITY_LOCAL;
  if (!is_local && session.durability() != v1::DURABILITY_REMOTE) return "none";
  return fmt::format("{}, commit {} at {} tokens", is_local ? "local" : "remote",
                     session.commit().number(), session.commit().position());
}

std::string pages_text(const v1::Session& session) {
  if (session.page_bytes() == 0) return "";
  return fmt::format(", {} of them in pages", session.page_bytes());
}

std::string list_table(const std::vector<v1::Session>& sessions) {
  size_t width = 4;
  for (const auto& session : sessions) width = std::max(width, session.name().size());
  const auto line = [&](auto&&... cells) {
    return fmt::format("{:<{}}  {:>10}  {:<7}  {:<4}  {:>8}  {:>12}  {:>5}\n", cells...);
  };
  std::string table = line("NAME", width, "TOKENS", "STATE", "BUSY", "IDLE", "CLOSES", "MARKS");
  for (const auto& session : sessions) {
    table += line(session.name(), width, session.position(), tier_name(session.tier()),
                  session.busy() ? "yes" : "no", fmt::format("{:.0f} s", session.idle_seconds()),
                  ttl_text(session), session.marks_size());
  }
  return table;
}

// A session command: its flags go into the names and the ttl, `act` calls the server and prints.
struct SessionFlags {
  std::string name;
  std::string other;                          // new name, mark, prefix or file
  std::string model, initial_state, adapter;  // of a new session
  std::vector<std::string> names;
  std::optional<double> ttl_seconds;
  v1::Durability durability = v1::DURABILITY_UNSPECIFIED;
  int64_t rewind_tokens = 0;
  std::optional<int64_t> position;
};

using Act =
    std::function<void(Client&, const CallOptions&, const CliContext&, const SessionFlags&)>;

int run_session(CliContext& context, const SessionFlags& flags, const Act& act) {
  Client client = context.client();
  Interrupts::Scope interrupt(context.interrupts);
  act(client, context.call_options(interrupt.canceller()), context, flags);
  return kExitOk;
}

struct Command {
  CLI::App& app;
  std::shared_ptr<SessionFlags> flags;
};

Command add_command(CLI::App& app, CliContext& context, const std::string& name,
                    const std::string& help, Act act) {
  CLI::App& command = *app.add_subcommand(name, help);
  const auto flags = std::make_shared<SessionFlags>();
  command.callback([&context, flags, act] {
    context.run = [&context, flags, act] { return run_session(context, *flags, act); };
  });
  return {command, flags};
}

void print_session(const CliContext& context, const v1::Session& session) {
  if (context.json) {
    write_json_line(session);
  } else {
    write_out(session_table(session));
  }
}

void print_name(const CliContext& context, const v1::Session& session) {
  if (context.json) {
    write_json_line(session);
  } else {
    write_out(session.name() + "\n");
  }
}

void add_ttl(const Command& command) {
  command.app.add_option_function<double>(
      "--ttl", [flags = command.flags](const double& seconds) { flags->ttl_seconds = seconds; },
      "Close the session after this time without use; seconds; 0: never [default: the server's]");
}

void add_durability(const Command& command, const std::string& otherwise) {
  takes_names<v1::Durability>(
      command.app.add_option("--durability", command.flags->durability,
                             "What survives a restart or a crash of the server: none; local, "
                             "everything acknowledged; remote, the same, and other servers with "
                             "its --state-store continue the session [default: " +
                                 otherwise + "]"),
      {{"none", v1::DURABILITY_NONE},
       {"local", v1::DURABILITY_LOCAL},
       {"remote", v1::DURABILITY_REMOTE}});
}

void add_rewind_tokens(const Command& command) {
  command.app.add_option(
      "--rewind-tokens", command.flags->rewind_tokens,
      "Store the ids of this many last tokens, so that rewind can return to each "
      "of them; 4 bytes of host memory each [default: 0]");
}

void add_model(const Command& command) {
  command.app.add_option(
      "--model", command.flags->model,
      "Name of the model of the server to which it belongs [default: the first]");
}

void add_name(const Command& command) {
  command.app.add_option("name", command.flags->name, "The session's name")->required();
}

void add_open_and_fork(CLI::App& app, CliContext& context) {
  const Command open = add_command(app, context, "open", "Open a session and print its name",
                                   [](Client& client, const CallOptions& options,
                                      const CliContext& ctx, const SessionFlags& flags) {
                                     v1::OpenSessionRequest request;
                                     request.set_name(flags.name);
                                     if (flags.ttl_seconds)
                                       request.set_ttl_seconds(*flags.ttl_seconds);
                                     request.set_durability(flags.durability);
                                     request.set_rewind_tokens(flags.rewind_tokens);
                                     request.set_model(flags.model);
                                     request.set_initial_state(flags.initial_state);
                                     request.set_adapter(flags.adapter);
                                     print_name(ctx, client.open_session(request, options));
                                   });
  open.app.add_option("name", open.flags->name,
                      "Name, 1 to 128 of A-Z a-z 0-9 . _ - [default: chosen by the client]");
  add_model(open);
  open.app.add_option("--initial-state", open.flags->initial_state,
                      "Name of the state of the server that it starts from; see `recurve info` "
                      "[default: none, it is empty]");
  open.app.add_option("--adapter", open.flags->adapter,
                      "Name of the LoRA adapter of the server with which it is computed; see "
                      "`recurve info` [default: none]");
  add_ttl(open);
  add_durability(open, "none");
  add_rewind_tokens(open);

  const Command fork =
      add_command(app, context, "fork",
                  "Open a session with the same state, without its marks, and print "
                  "its name",
                  [](Client& client, const CallOptions& options, const CliContext& ctx,
                     const SessionFlags& flags) {
                    v1::ForkSessionRequest request;
                    request.set_name(flags.name);
                    request.set_new_name(flags.other);
                    if (flags.ttl_seconds) request.set_ttl_seconds(*flags.ttl_seconds);
                    request.set_durability(flags.durability);
                    print_name(ctx, client.fork_session(request, options));
                  });
  add_name(fork);
  fork.app.add_option("new-name", fork.flags->other,
                      "Name of the new session [default: chosen by the client]");
  add_ttl(fork);
  add_durability(fork, "the original's");
}

void add_get_list_close(CLI::App& app, CliContext& context) {
  add_name(add_command(app, context, "get", "Print the properties of a session",
                       [](Client& client, const CallOptions& options, const CliContext& ctx,
                          const SessionFlags& flags) {
                         print_session(ctx, client.get_session(flags.name, options));
                       }));
  const Command list =
      add_command(app, context, "list", "List all sessions, in the order of their names",
                  [](Client& client, const CallOptions& options, const CliContext& ctx,
                     const SessionFlags& flags) {
                    const auto sessions = client.list_sessions(flags.other, options, flags.model);
                    if (!ctx.json) return write_out(list_table(sessions));
                    for (const auto& session : sessions) write_json_line(session);
                  });
  list.app.add_option("--prefix", list.flags->other,
                      "List only names with this prefix [default: all]");
  list.app.add_option("--model", list.flags->model,
                      "List only sessions of this model of the server [default: all]");
  const Command close = add_command(app, context, "close", "Close sessions and delete their marks",
                                    [](Client& client, const CallOptions& options,
                                       const CliContext& ctx, const SessionFlags& flags) {
                                      for (const std::string& name : flags.names) {
                                        const auto response = client.close_session(name, options);
                                        if (ctx.json) write_json_line(response);
                                      }
                                    });
  close.app.add_option("names", close.flags->names, "The sessions' names")->required();
}

void add_accept(CLI::App& app, CliContext& context) {
  add_name(add_command(app, context, "accept",
                       "Continue a session that answers DATA_LOSS from the position that get "
                       "prints; acknowledged turns after it are lost",
                       [](Client& client, const CallOptions& options, const CliContext& ctx,
                          const SessionFlags& flags) {
                         print_session(ctx, client.accept_session(flags.name, options));
                       }));
}

// Into a temporary file first: a file of that name is always complete.
void export_to(Client& client, const CallOptions& options, const SessionFlags& flags) {
  const std::filesystem::path path = flags.other, part = flags.other + ".part";
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  const auto check = [&](const std::filesystem::path& at) {
    if (file) return;
    throw std::runtime_error(fmt::format("cannot write {}: {}", at.string(), strerror(errno)));
  };
  check(part);
  v1::ExportRequest request;
  request.set_name(flags.name);
  try {
    client.export_session(
        request,
        [&](std::string_view bytes, uint64_t) {
          file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
          check(part);
        },
        options);
    file.close();
    check(part);
    std::filesystem::rename(part, path);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw;
  }
}

v1::Session import_from(Client& client, const CallOptions& options, const SessionFlags& flags) {
  std::ifstream file(flags.other, std::ios::binary);
  if (!file) {
    throw std::runtime_error(fmt::format("cannot read {}: {}", flags.other, strerror(errno)));
  }
  v1::ImportRequest first;
  first.set_name(flags.name);
  if (flags.ttl_seconds) first.set_ttl_seconds(*flags.ttl_seconds);
  first.set_durability(flags.durability);
  first.set_rewind_tokens(flags.rewind_tokens);
  first.set_model(flags.model);
  constexpr std::streamsize kPiece = 1 << 20;
  const auto next = [&](std::string* bytes) {
    bytes->resize(kPiece);
    file.read(bytes->data(), kPiece);
    bytes->resize(static_cast<size_t>(file.gcount()));
    return !bytes->empty();
  };
  return client.import_session(first, next, options);
}

void add_export_and_import(CLI::App& app, CliContext& context) {
  const Command out =
      add_command(app, context, "export", "Write the session's state to a file",
                  [](Client& client, const CallOptions& options, const CliContext&,
                     const SessionFlags& flags) { export_to(client, options, flags); });
  add_name(out);
  out.app.add_option("file", out.flags->other, "File to write; an existing one is replaced")
      ->type_name("FILE")
      ->required();
  const Command in = add_command(
      app, context, "import", "Open a session with the state of a file and print its name",
      [](Client& client, const CallOptions& options, const CliContext& ctx,
         const SessionFlags& flags) { print_name(ctx, import_from(client, options, flags)); });
  add_name(in);
  in.app.add_option("file", in.flags->other, "File that export wrote")
      ->type_name("FILE")
      ->required();
  add_model(in);
  add_ttl(in);
  add_durability(in, "none");
  add_rewind_tokens(in);
}

// The session has no place on the server for a moment; if something fails then, its state is in a
// file, which the error names.
v1::Session move_to(Client& client, const CallOptions& options, const SessionFlags& flags) {
  const v1::Session before = client.get_session(flags.name, options);
  if (before.durability() == flags.durability) return before;
  if (before.marks_size() > 0) {
    throw std::runtime_error(
        fmt::format("session {} has {} marks, which do not move: remove them with unmark",
                    flags.name, before.marks_size()));
  }
  if (flags.durability == v1::DURABILITY_REMOTE && !before.adapter().empty()) {
    throw std::runtime_error(
        fmt::format("session {} has the adapter {}, and sessions of durability remote have none",
                    flags.name, before.adapter()));
  }
  if (before.tier() == v1::SESSION_TIER_EMPTY) {
    client.close_session(flags.name, options, before.epoch());
    v1::OpenSessionRequest request;
    request.set_name(flags.name);
    request.set_durability(flags.durability);
    request.set_model(before.model());
    request.set_adapter(before.adapter());
    request.set_rewind_tokens(before.rewind_tokens());
    return client.open_session(request, options);
  }
  SessionFlags file = flags;
  file.model = before.model();
  file.other = flags.name + ".state";
  if (flags.durability != v1::DURABILITY_REMOTE) file.ttl_seconds = before.ttl_seconds();
  file.rewind_tokens = before.rewind_tokens();
  export_to(client, options, file);
  try {
    client.close_session(flags.name, options, before.epoch());
    const v1::Session moved = import_from(client, options, file);
    std::error_code ignored;
    std::filesystem::remove(file.other, ignored);
    return moved;
  } catch (const std::exception&) {
    fmt::print(stderr, "recurve: the state of {} is in {}: session import opens it\n", flags.name,
               file.other);
    throw;
  }
}

void add_move(CLI::App& app, CliContext& context) {
  const Command move = add_command(
      app, context, "move",
      "Give a session another durability: close it and open it with its state. A file NAME.state "
      "in "
      "the working directory has the state meanwhile",
      [](Client& client, const CallOptions& options, const CliContext& ctx,
         const SessionFlags& flags) { print_session(ctx, move_to(client, options, flags)); });
  add_name(move);
  add_durability(move, "none");
  move.app.get_option("--durability")->required();
}

using MarkCall = v1::Session (Client::*)(const std::string&, const std::string&,
                                         const CallOptions&);

void add_mark_command(CLI::App& app, CliContext& context, const std::string& name,
                      const std::string& help, MarkCall call) {
  const Command command =
      add_command(app, context, name, help,
                  [call](Client& client, const CallOptions& options, const CliContext& ctx,
                         const SessionFlags& flags) {
                    print_session(ctx, (client.*call)(flags.name, flags.other, options));
                  });
  add_name(command);
  command.app.add_option("mark", command.flags->other, "The mark's name")->required();
}

void add_rewind(CLI::App& app, CliContext& context) {
  const Command command =
      add_command(app, context, "rewind", "Return to a mark, which remains, or to a stored token",
                  [](Client& client, const CallOptions& options, const CliContext& ctx,
                     const SessionFlags& flags) {
                    v1::RewindSessionRequest request;
                    request.set_name(flags.name);
                    request.set_mark(flags.other);
                    if (flags.position) request.set_position(*flags.position);
                    print_session(ctx, client.rewind_session(request, options));
                  });
  add_name(command);
  CLI::Option* const mark = command.app.add_option("mark", command.flags->other, "The mark's name");
  command.app
      .add_option_function<int64_t>(
          "--position",
          [flags = command.flags](const int64_t& tokens) { flags->position = tokens; },
          "Return to the state after this many tokens, which is computed again from the last mark "
          "before it; needs open --rewind-tokens")
      ->excludes(mark);
}

}  // namespace

std::string session_table(const v1::Session& session) {
  std::string table = fmt::format(
      "name           {}\n"
      "tokens         {}\n"
      "pending token  {}\n"
      "state          {}, {} bytes{}\n"
      "host memory    {} bytes\n"
      "busy           {}\n"
      "epoch          {}\n"
      "idle           {:.1f} s\n"
      "closes         {}\n"
      "durability     {}\n",
      session.name(), session.position(), pending_text(session), tier_name(session.tier()),
      session.state_bytes(), pages_text(session), session.host_bytes(),
      session.busy() ? "yes" : "no", session.epoch(), session.idle_seconds(), ttl_text(session),
      durability_text(session));
  if (!session.initial_state().empty()) {
    table += fmt::format("started from   initial state {}\n", session.initial_state());
  }
  if (!session.adapter().empty()) {
    table += fmt::format("computed with  adapter {}\n", session.adapter());
  }
  if (session.rewind_tokens() > 0) {
    table += fmt::format("rewinds        to tokens from {} on\n", session.tokens_from());
  }
  if (session.in_doubt()) {
    table += "in doubt       acknowledged turns may be lost: accept it, or close it\n";
  }
  for (const auto& mark : session.marks()) {
    table += fmt::format("mark           {} at {} tokens\n", mark.name(), mark.position());
  }
  return table;
}

void add_session(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand(
      "session", "Manage sessions: named states on the server, which generate and chat continue");
  command.require_subcommand(1);
  add_open_and_fork(command, context);
  add_get_list_close(command, context);
  add_export_and_import(command, context);
  add_move(command, context);
  add_accept(command, context);
  add_mark_command(command, context, "mark",
                   "Store the state under a name; an existing mark of that name is replaced",
                   &Client::mark_session);
  add_mark_command(command, context, "unmark", "Delete a mark", &Client::unmark_session);
  add_rewind(command, context);
}

}  // namespace recurve
