#include "clients/cpp/cli/cli_generate.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_io.h"
#include "clients/cpp/cli/cli_messages.h"
#include "clients/cpp/cli/cli_request_flags.h"

namespace recurve {

namespace {

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

AnswerPrinter::AnswerPrinter(bool json, int choices)
    : json_(json), choices_(static_cast<size_t>(std::max(choices, 1))) {}

v1::GenerateFinal AnswerPrinter::print_answer(Client& client, const v1::GenerateRequest& request,
                                              bool done_once, const CallOptions& options) {
  const auto on_response = [this](const v1::GenerateResponse& response) { print(response); };
  if (!done_once) return client.generate(request, on_response, options);
  Client::OnRestart on_restart = [this] { restart(); };
  return client.generate_turn(request, on_response, json_ ? nullptr : on_restart, options);
}

void AnswerPrinter::print(const v1::GenerateResponse& response) {
  if (response.has_prompt()) prompt_ = response.prompt();
  if (response.has_progress()) {
    status_.show(fmt::format("recurve: {} of {} tokens of the prompt are absorbed",
                             response.progress().absorbed_tokens(), prompt_.prompt_tokens()));
  } else {
    status_.clear();
  }
  if (json_) write_json_line(response);
  if (response.has_chunk()) take(response.chunk());
  if (response.has_final()) take(response.final());
}

void AnswerPrinter::take(const v1::Chunk& chunk) {
  if (static_cast<size_t>(chunk.choice()) >= choices_.size()) return;
  Choice& choice = choices_[static_cast<size_t>(chunk.choice())];
  if (chunk.choice() == 0 && !json_) {
    fmt::print(stderr, "{}", reasoning_.add(chunk.reasoning()));
  }
  if (!chunk.text().empty()) {
    if (choice.in_call) end_call(&choice);
    emit(chunk.text(), &choice);
  }
  for (const v1::ToolCallPart& part : chunk.tool_calls()) {
    if (chunk.choice() == 0 && part.index() == choice.calls) call_ids_.push_back(part.id());
    take(part, &choice);
  }
}

void AnswerPrinter::take(const v1::ToolCallPart& part, Choice* choice) {
  if (part.index() == choice->calls) {  // the next one, so the last is whole
    if (choice->in_call) end_call(choice);
    ++choice->calls;
    emit(fmt::format(R"({}{{"id": {}, "name": {}, "arguments": )", choice->line_begun ? "\n" : "",
                     json_text(part.id()), json_text(part.name())),
         choice);
    choice->in_call = true;
  }
  std::string arguments = part.arguments();  // in whose strings no line break can be
  std::ranges::replace(arguments, '\n', ' ');
  emit(arguments, choice);
}

void AnswerPrinter::end_call(Choice* choice) {
  emit("}\n", choice);
  choice->in_call = false;
}

// The text of a choice that follows others waits for them.
void AnswerPrinter::emit(const std::string& text, Choice* choice) {
  if (text.empty()) return;
  choice->line_begun = text.back() != '\n';
  if (choice != choices_.data()) {
    choice->waiting += text;
  } else if (!json_) {
    write(text);
    line_open_ = choice->line_begun || !choice->in_call;
  }
}

void AnswerPrinter::take(const v1::GenerateFinal& final) {
  for (size_t c = 0; c < choices_.size(); ++c) {
    Choice& choice = choices_[c];
    const bool known = static_cast<int>(c) < final.choices_size();
    const bool whole = known && final.choices(static_cast<int>(c)).tool_calls() == choice.calls;
    if (choice.in_call && whole) end_call(&choice);
    if (c == 0 || json_) continue;
    write((ended_by_call(choices_[c - 1]) ? "" : "\n") + choice.waiting);
    line_open_ = !ended_by_call(choice);
  }
}

void AnswerPrinter::end(bool always_break) {
  status_.clear();
  const bool breaks = always_break || out_is_terminal() || choices_.size() > 1;
  if (line_open_ && breaks) write_out("\n");
  line_open_ = false;
}

void AnswerPrinter::restart() {
  choices_.assign(choices_.size(), {});
  call_ids_.clear();
  out_.repeated = reasoning_.repeated = 0;
}

std::string_view AnswerPrinter::Written::add(std::string_view next) {
  const size_t known = std::min(next.size(), text.size() - repeated);
  if (std::string_view(text).substr(repeated, known) != next.substr(0, known)) {
    throw std::runtime_error("the connection was lost, and the repeated answer is another one");
  }
  repeated += known;
  next.remove_prefix(known);
  text += next;
  repeated += next.size();
  return next;
}

namespace {

std::string reason_name(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_EOS:
      return "end of sequence";
    case v1::FINISH_REASON_STOP_ID:
      return "stop id";
    case v1::FINISH_REASON_STOP_STRING:
      return "stop string";
    default:
      return "unknown";
  }
}

}  // namespace

void print_stats(const v1::PromptInfo& prompt, const v1::GenerateFinal& final) {
  const v1::Usage& usage = final.usage();
  std::string reasons;
  for (const auto& choice : final.choices()) {
    reasons += (reasons.empty() ? "" : ", ") + reason_name(choice.reason());
  }
  // The first token of each choice is the prefill's.
  const auto decoded = static_cast<double>(usage.generated_tokens() - final.choices_size());
  fmt::print(
      stderr,
      "recurve: {} prompt tokens, {} generated (ended by {}); queue {:.1f} ms, prefill {:.1f} "
      "ms, decode {:.1f} ms",
      usage.prompt_tokens(), usage.generated_tokens(), reasons, usage.queue_seconds() * 1e3,
      usage.prefill_seconds() * 1e3, usage.decode_seconds() * 1e3);
  if (decoded > 0 && usage.decode_seconds() > 0) {
    fmt::print(stderr, ", {:.1f} tokens/s", decoded / usage.decode_seconds());
  }
  if (usage.prefix_tokens() > 0) {
    fmt::print(stderr, "; {} prompt tokens spared", usage.prefix_tokens());
  }
  fmt::print(stderr, "; request {}, seed {}", prompt.request_id(), prompt.seed());
  if (usage.session_position() > 0) {
    fmt::print(stderr, "; session at {} tokens", usage.session_position());
  }
  fmt::print(stderr, "\n");
}

namespace {

struct GenerateFlags {
  v1::GenerateRequest request;
  TextSource source;
  std::vector<std::string> words;  // of `ask`, as `system`
  std::string system;
  ToolFlags tools;
  bool ids = false;
  bool messages = false;
  bool create_session = false;
  bool stats = false;
};

v1::Session open_if_missing(Client& client, const v1::GenerateRequest& generate,
                            const CallOptions& options) {
  v1::OpenSessionRequest request;
  request.set_name(generate.session());
  request.set_initial_state(generate.initial_state());
  request.set_adapter(generate.adapter());
  try {
    return client.open_session(request, options);
  } catch (const ClientError& error) {
    if (error.code() != grpc::StatusCode::ALREADY_EXISTS) throw;
    return client.get_session(generate.session(), options);
  }
}

// Of the request's session, or an empty one.
v1::Session session_of(Client& client, const GenerateFlags& flags, const CallOptions& options) {
  if (flags.create_session) return open_if_missing(client, flags.request, options);
  if (flags.request.session().empty()) return {};
  return client.get_session(flags.request.session(), options);
}

void fill_prompt(CliContext& /*context*/, Client& /*client*/, GenerateFlags& flags) {
  const std::string text = flags.source.read();
  if (flags.ids) {
    for (const int32_t id : parse_ids(text, flags.source.name())) {
      flags.request.mutable_ids()->add_ids(id);
    }
    flags.request.mutable_ids();  // a prompt of no ids is one too
    return;
  }
  check_utf8(text, flags.source.name());
  if (flags.messages) {
    *flags.request.mutable_messages() = parse_messages(text, flags.source.name());
    set_tools(flags.tools, &flags.request);
  } else {
    flags.request.set_text(text);
  }
}

// The words of the command line, and what is piped into standard input.
std::string question_of(const GenerateFlags& flags) {
  std::string text = fmt::format("{}", fmt::join(flags.words, " "));
  if (in_is_piped()) {
    const std::string piped = read_all("-");
    if (!text.empty() && !piped.empty()) text += "\n\n";
    text += piped;
  }
  if (text.empty()) {
    throw UsageError("the prompt is empty: give it as an argument, or through standard input");
  }
  check_utf8(text, "the prompt");
  return text;
}

// A message if the model has a template for it, else a text to continue.
void fill_question(CliContext& context, Client& client, GenerateFlags& flags) {
  const std::string text = question_of(flags);
  Interrupts::Scope interrupt(context.interrupts);
  const CallOptions options = context.call_options(interrupt.canceller());
  if (!client.model_info(options, flags.request.model()).has_chat_template()) {
    if (!flags.system.empty()) throw UsageError("--system needs a model with a chat template");
    if (!flags.tools.tools_json.empty()) {
      throw UsageError("--tools needs a model with a chat template");
    }
    flags.request.set_text(text);
    return;
  }
  const auto add = [&](const char* role, const std::string& content) {
    auto* message = flags.request.mutable_messages()->add_messages();
    message->set_role(role);
    message->set_content(content);
  };
  if (!flags.system.empty()) add("system", flags.system);
  add("user", text);
  set_tools(flags.tools, &flags.request);
}

using FillPrompt = std::function<void(CliContext&, Client&, GenerateFlags&)>;

int generate(CliContext& context, GenerateFlags& flags, const FillPrompt& fill) {
  Client client = context.client();
  fill(context, client, flags);  // before Ctrl-C cancels a call, as it may wait for standard input
  flags.request.set_report_progress(AnswerPrinter::shows_progress(context.json));
  AnswerPrinter printer(context.json, flags.request.n());
  Interrupts::Scope interrupt(context.interrupts);
  const CallOptions options = context.call_options(interrupt.canceller());
  try {
    const bool once = is_done_once(flags.request, session_of(client, flags, options));
    const auto final = printer.print_answer(client, flags.request, once, options);
    printer.end();
    if (flags.stats) print_stats(printer.prompt(), final);
    return kExitOk;
  } catch (const ClientError& error) {
    printer.end();
    if (interrupt.interrupted()) return kExitInterrupted;
    print_error(error);
    if (error.code() == grpc::StatusCode::NOT_FOUND && !flags.request.session().empty()) {
      fmt::print(stderr,
                 "recurve: open it with 'recurve session open {}', or add --create-session\n",
                 flags.request.session());
    }
    return exit_code(error);
  }
}

// What `generate` and `ask` share.
void add_answer_flags(CLI::App& command, const std::shared_ptr<GenerateFlags>& flags) {
  add_constraint_flags(command, &flags->request);
  add_stop_flags(command, &flags->request);
  add_sampling_flags(command, &flags->request);
  command.add_option_function<int32_t>(
      "--n", [flags](const int32_t& n) { flags->request.set_n(n); },
      "Answers to the one prompt, 1 to the server's limit; answer c samples with seed + c; printed "
      "one after the other, each on its own line [default: 1]");
  auto* session = command.add_option_function<std::string>(
      "--session", [flags](const std::string& name) { flags->request.set_session(name); },
      "Continue this open session; an empty prompt continues the last answer [default: none]");
  command.add_flag("--create-session", flags->create_session, "Open the session if it is not open")
      ->needs(session);
  command.add_flag("--stats", flags->stats, "Print tokens and times to standard error");
}

}  // namespace

void add_generate(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand(
      "generate",
      "Continue a prompt. Prints only the generated text, as it arrives; ends it with a line "
      "break only on a terminal.");
  const auto flags = std::make_shared<GenerateFlags>();
  add_text_source(command, &flags->source, "The prompt");
  auto* ids = command.add_flag("--ids", flags->ids,
                               "Read the prompt as token ids, separated by spaces, line breaks or "
                               "commas");
  auto* messages =
      command
          .add_flag(
              "--messages", flags->messages,
              "The prompt is a JSON array of messages, {\"role\": ..., \"content\": ...}, for the "
              "model's chat template")
          ->excludes(ids);
  add_tool_flags(command, &flags->tools)->needs(messages);
  add_prompt_flags(command, &flags->request);
  add_answer_flags(command, flags);
  command.callback([&context, flags] {
    context.run = [&context, flags] { return generate(context, *flags, fill_prompt); };
  });
}

void add_ask(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand(
      "ask",
      "Answer one prompt: a user's message if the model has a chat template, else a text to "
      "continue. Text that is piped into standard input is the prompt, or follows it. "
      "'recurve \"PROMPT\"' is short for this command.");
  const auto flags = std::make_shared<GenerateFlags>();
  command.add_option("prompt", flags->words, "The prompt, in one or several words");
  command.add_option("-s,--system", flags->system, "System message [default: none]");
  add_tool_flags(command, &flags->tools);
  add_answer_flags(command, flags);
  command.callback([&context, flags] {
    context.run = [&context, flags] { return generate(context, *flags, fill_question); };
  });
}

}  // namespace recurve
