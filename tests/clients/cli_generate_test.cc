// `recurve generate` as a process, against a fake server.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/clients/cli_process.h"
#include "tests/clients/fake_server.h"
#include "tests/clients/relay.h"

namespace recurve::testing::cli_generate_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CliGenerateTest : public ::testing::Test {
 protected:
  std::vector<std::string> arguments(std::vector<std::string> more) const {
    more.insert(more.begin(), {"generate", "--server", server_.address()});
    return more;
  }
  CliResult generate(std::vector<std::string> more, const std::string& input = "") const {
    return run_cli(arguments(std::move(more)), input);
  }
  // The one request that arrived.
  v1::GenerateRequest request() const {
    const auto requests = server_.inference.generate_requests();
    return requests.size() == 1 ? requests[0] : v1::GenerateRequest();
  }

  FakeServer server_;
};

// Writes "a" again and again until the client is gone; sets `cancelled` then.
OnGenerate endless(std::promise<bool>& cancelled) {
  return [&cancelled](grpc::ServerContext* context, const v1::GenerateRequest& request,
                      GenerateWriter* writer) {
    writer->Write(prompt_message(request));
    for (int i = 0; i < 5000 && !context->IsCancelled(); ++i) {
      writer->Write(chunk_message("a"));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    cancelled.set_value(context->IsCancelled());
    return grpc::Status::OK;
  };
}

TEST_F(CliGenerateTest, PrintsTheTextAloneWithoutALineBreak) {
  const auto result = generate({"--prompt", "hello"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "Once upon a time");
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(request().text(), "hello");
}

TEST_F(CliGenerateTest, EndsTheLineOnATerminal) {
  if (access("/dev/pts/ptmx", F_OK) != 0) GTEST_SKIP() << "no pseudo-terminals here";
  CliProcess process(arguments({"--prompt", "hello"}), CliProcess::Out::kTerminal);
  EXPECT_EQ(process.finish().out, "Once upon a time\r\n");
}

TEST_F(CliGenerateTest, PrintsEachMessageBeforeTheNextIsSent) {
  std::promise<void> seen;
  server_.inference.set_on_generate(
      [&, went_on = seen.get_future().share()](auto*, const auto&, GenerateWriter* writer) {
        writer->Write(chunk_message("first"));
        const auto status = went_on.wait_for(std::chrono::seconds(20));
        writer->Write(chunk_message(status == std::future_status::ready ? " second" : " late"));
        writer->Write(final_message());
        return grpc::Status::OK;
      });
  CliProcess process(arguments({"--prompt", "x"}));
  process.wait_for_output("first");
  seen.set_value();
  EXPECT_EQ(process.finish().out, "first second");
}

TEST_F(CliGenerateTest, JsonHasEveryMessageAndAllItsFields) {
  const auto result = generate({"--prompt", "x", "--json", "--seed", "18446744073709551615"});
  std::vector<nlohmann::json> lines;
  std::istringstream in(result.out);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0]["prompt"]["request_id"], "made-1");
  EXPECT_EQ(lines[0]["prompt"]["seed"], "18446744073709551615");
  EXPECT_EQ(lines[0]["prompt"]["session_position"], "0");  // a default
  EXPECT_EQ(lines[1]["chunk"]["text"], "Once");
  EXPECT_EQ(lines[1]["chunk"]["choice"], 0);
  EXPECT_EQ(lines[4]["final"]["choices"][0]["reason"], "FINISH_REASON_LENGTH");
}

TEST_F(CliGenerateTest, StatsGoToStandardError) {
  const auto result = generate({"--prompt", "x", "--stats"});
  EXPECT_EQ(result.out, "Once upon a time");
  EXPECT_THAT(result.err, HasSubstr("3 prompt tokens, 3 generated (ended by length)"));
  EXPECT_THAT(result.err, HasSubstr("request made-1, seed 42"));
}

TEST_F(CliGenerateTest, SeveralAnswersComeOneAfterTheOther) {
  server_.inference.set_on_generate([](auto*, const auto&, GenerateWriter* writer) {
    for (const auto& [text, choice] : {std::pair("b1", 1), {"a1", 0}, {"b2", 1}, {"a2", 0}}) {
      writer->Write(chunk_message(text, choice));
    }
    writer->Write(final_message(2));
    return grpc::Status::OK;
  });
  EXPECT_EQ(generate({"--prompt", "x", "--n", "2"}).out, "a1a2\nb1b2\n");
}

TEST_F(CliGenerateTest, ReadsStandardInputAsItIs) {
  const std::string text = "naïve\r\n\n\ttext with \"quotes\" and a last line break\n";
  EXPECT_EQ(generate({}, text).code, 0);
  EXPECT_EQ(request().text(), text);
}

TEST_F(CliGenerateTest, ReadsAFile) {
  const auto path =
      std::filesystem::temp_directory_path() / ("recurve_cli_" + std::to_string(getpid()) + ".txt");
  std::ofstream(path) << "from a file\n";
  EXPECT_EQ(generate({"--file", path}).code, 0);
  std::filesystem::remove(path);
  EXPECT_EQ(request().text(), "from a file\n");
}

TEST_F(CliGenerateTest, ReadsIds) {
  EXPECT_EQ(generate({"--ids"}, "1, 2\n30 -4").code, 0);
  ASSERT_TRUE(request().has_ids());
  EXPECT_THAT(request().ids().ids(), ElementsAre(1, 2, 30, -4));
}

TEST_F(CliGenerateTest, EmptyPromptIsAsked) {
  server_.sessions.put("s", v1::DURABILITY_NONE);
  EXPECT_EQ(generate({"--prompt", "", "--session", "s"}).code, 0);
  EXPECT_EQ(server_.inference.generate_requests().size(), 1u);
  EXPECT_EQ(request().text(), "");
}

TEST_F(CliGenerateTest, CreatesTheSessionOnce) {
  EXPECT_EQ(generate({"--prompt", "x", "--session", "s", "--create-session"}).code, 0);
  EXPECT_EQ(generate({"--prompt", "y", "--session", "s", "--create-session"}).code, 0);
  EXPECT_EQ(server_.sessions.opened(), 1);
  EXPECT_EQ(server_.inference.generate_requests()[1].session(), "s");
}

struct FlagCase {
  const char* name;
  std::vector<std::string> flags;
  const char* fields;  // of the request, as protobuf text
};

class CliGenerateFlagTest : public CliGenerateTest,
                            public ::testing::WithParamInterface<FlagCase> {};

TEST_P(CliGenerateFlagTest, ReachesItsFieldAndNoOther) {
  server_.sessions.put("s", v1::DURABILITY_NONE);
  std::vector<std::string> flags = GetParam().flags;
  flags.insert(flags.end(), {"--prompt", "p"});
  const auto result = generate(flags);
  ASSERT_EQ(result.code, 0) << result.err;
  v1::GenerateRequest expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(GetParam().fields, &expected));
  expected.set_text("p");
  EXPECT_EQ(request().DebugString(), expected.DebugString());
}

INSTANTIATE_TEST_SUITE_P(
    Flags, CliGenerateFlagTest,
    ::testing::Values(
        FlagCase{"none", {}, ""},
        FlagCase{"request_id", {"--request-id", "r-1"}, "request_id: 'r-1'"},
        FlagCase{"add_special", {"--no-add-special-tokens"}, "add_special_tokens: false"},
        FlagCase{"parse_special", {"--parse-special"}, "parse_special: true"},
        FlagCase{"temperature", {"--temperature", "0"}, "sampling { temperature: 0 }"},
        FlagCase{"top_k", {"--top-k", "40"}, "sampling { top_k: 40 }"},
        FlagCase{"top_p", {"--top-p", "0.9"}, "sampling { top_p: 0.9 }"},
        FlagCase{"min_p", {"--min-p", "0.05"}, "sampling { min_p: 0.05 }"},
        FlagCase{"typical_p", {"--typical-p", "0.5"}, "sampling { typical_p: 0.5 }"},
        FlagCase{"repetition_penalty",
                 {"--repetition-penalty", "1.1"},
                 "sampling { repetition_penalty: 1.1 }"},
        FlagCase{"presence_penalty",
                 {"--presence-penalty", "-1.5"},
                 "sampling { presence_penalty: -1.5 }"},
        FlagCase{"frequency_penalty",
                 {"--frequency-penalty", "0.25"},
                 "sampling { frequency_penalty: 0.25 }"},
        FlagCase{"logit_bias",
                 {"--logit-bias", "7=-1.5", "--logit-bias", "9=2"},
                 "sampling { logit_bias { key: 7 value: -1.5 } logit_bias { key: 9 value: 2 } }"},
        FlagCase{"allowed",
                 {"--allowed-token-ids", "1,2", "--allowed-token-ids", "3"},
                 "sampling { allowed_token_ids: [1, 2, 3] }"},
        FlagCase{
            "seed", {"--seed", "18446744073709551615"}, "sampling { seed: 18446744073709551615 }"},
        FlagCase{"max_tokens", {"--max-tokens", "0"}, "stop { max_tokens: 0 }"},
        FlagCase{"min_tokens", {"--min-tokens", "3"}, "stop { min_tokens: 3 }"},
        FlagCase{"ignore_eos", {"--ignore-eos"}, "stop { ignore_eos: true }"},
        FlagCase{"stop_token_ids",
                 {"--stop-token-ids", "4 5", "--stop-token-ids", "6"},
                 "stop { stop_token_ids: [4, 5, 6] }"},
        FlagCase{
            "stop", {"--stop", "a, b", "--stop", "-\n"}, "stop { stop_strings: ['a, b', '-\\n'] }"},
        FlagCase{"include_stop", {"--include-stop"}, "stop { include_stop: true }"},
        FlagCase{"n", {"--n", "2"}, "n: 2"},
        FlagCase{"logprobs", {"--logprobs", "0"}, "logprobs: 0"},
        FlagCase{"prompt_logprobs", {"--prompt-logprobs", "5"}, "prompt_logprobs: 5"},
        FlagCase{"priority", {"--priority", "-3"}, "priority: -3"},
        FlagCase{"prefix", {"--prefix", "use"}, "prefix: PREFIX_MODE_USE"},
        FlagCase{"prefix_point",
                 {"--prefix-point", "10", "--prefix-point", "20"},
                 "prefix_points: [10, 20]"},
        FlagCase{"durability", {"--durability", "none"}, "durability: DURABILITY_NONE"},
        FlagCase{"expected_epoch", {"--expected-epoch", "7"}, "expected_epoch: 7"},
        FlagCase{"any_json", {"--any-json"}, "constraint { json: true }"},
        FlagCase{"any_whitespace",
                 {"--any-json", "--any-whitespace"},
                 "constraint { json: true any_whitespace: true }"},
        FlagCase{"regex", {"--regex", "[a-z]+"}, "constraint { regex: '[a-z]+' }"},
        FlagCase{"choice",
                 {"--choice", "yes, sir", "--choice", "no"},
                 "constraint { choice { texts: ['yes, sir', 'no'] } }"},
        FlagCase{"session", {"--session", "s"}, "session: 's'"}),
    [](const auto& param) { return std::string(param.param.name); });

TEST_F(CliGenerateTest, ConstraintsComeFromFiles) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("recurve_cli_constraint_" + std::to_string(getpid()));
  std::ofstream(path) << "{\"type\": \"null\"}\n";
  for (const char* field : {"json_schema", "grammar", "structural_tag"}) {
    std::string flag = std::string("--") + field;
    std::replace(flag.begin(), flag.end(), '_', '-');
    ASSERT_EQ(generate({"--prompt", "p", flag, path}).code, 0) << flag;
    const v1::Constraint sent = server_.inference.generate_requests().back().constraint();
    const auto* described = v1::Constraint::descriptor()->FindFieldByName(field);
    EXPECT_EQ(sent.GetReflection()->GetString(sent, described), "{\"type\": \"null\"}\n") << flag;
  }
  const auto both = generate({"--prompt", "p", "--any-json", "--grammar", path});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("--any-json excludes --grammar"));
  std::filesystem::remove(path);
}

constexpr const char* kToolsFile = "[{\"type\": \"function\", \"function\": {\"name\": \"now\"}}]";

TEST_F(CliGenerateTest, ToolsGoWithMessages) {
  const auto path =
      std::filesystem::temp_directory_path() / ("recurve_cli_tools_" + std::to_string(getpid()));
  std::ofstream(path) << kToolsFile;
  const auto asked = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--messages", "--tools", path});
    EXPECT_EQ(generate(flags, R"([{"role": "user", "content": "hi"}])").code, 0);
    const v1::GenerateRequest sent = server_.inference.generate_requests().back();
    EXPECT_EQ(sent.messages().tools_json(), kToolsFile);
    return sent.has_tool_use() ? "{" + sent.tool_use().ShortDebugString() + "}" : "none";
  };
  EXPECT_EQ(asked({}), "{}");
  EXPECT_EQ(asked({"--tool-choice", "auto"}), "{}");
  EXPECT_EQ(asked({"--tool-choice", "required"}), "{required: true}");
  EXPECT_EQ(asked({"--tool-choice", "now"}), "{function: \"now\"}");
  EXPECT_EQ(asked({"--single-tool-call"}), "{single: true}");
  EXPECT_EQ(asked({"--allow-tool", "now", "--allow-tool", "f"}),
            "{allowed: \"now\" allowed: \"f\"}");
  EXPECT_EQ(asked({"--tool-choice", "none"}), "none");
  const auto text = generate({"--prompt", "p", "--tools", path});
  EXPECT_EQ(text.code, 2);
  EXPECT_THAT(text.err, HasSubstr("--tools requires --messages"));
  EXPECT_THAT(generate({"--prompt", "p", "--tool-choice", "now"}).err,
              HasSubstr("--tool-choice requires --tools"));
  std::filesystem::remove(path);
}

TEST_F(CliGenerateTest, CallsOfToolsAreLinesOfJson) {
  int whole = 2;
  server_.inference.set_on_generate([&](auto*, const auto& request, auto* writer) {
    writer->Write(prompt_message(request));
    writer->Write(chunk_message("Let me see."));
    const auto part = [&](int index, const char* id, const char* name, const char* arguments) {
      v1::GenerateResponse response = chunk_message("");
      auto* call = response.mutable_chunk()->add_tool_calls();
      call->set_index(index);
      call->set_id(id);
      call->set_name(name);
      call->set_arguments(arguments);
      writer->Write(response);
    };
    part(0, "c0", "weather", "");
    part(0, "", "", "{\"city\":\n");
    part(0, "", "", "\"Paris\"}");
    part(1, "c1", "now", "{}");
    v1::GenerateResponse last = final_message();
    last.mutable_final()->mutable_choices(0)->set_tool_calls(whole);
    writer->Write(last);
    return grpc::Status::OK;
  });
  const std::string lines =
      "Let me see.\n"
      R"({"id": "c0", "name": "weather", "arguments": {"city": "Paris"}})"
      "\n"
      R"({"id": "c1", "name": "now", "arguments": {})";
  EXPECT_EQ(generate({"--prompt", "p"}).out, lines + "}\n");
  whole = 1;  // the second has been cut
  EXPECT_EQ(generate({"--prompt", "p"}).out, lines);
}

TEST_F(CliGenerateTest, NumbersThatAreNoneAreSentForTheServerToRefuse) {
  EXPECT_EQ(generate({"--prompt", "p", "--temperature", "nan"}).code, 0);
  EXPECT_TRUE(std::isnan(request().sampling().temperature()));
}

TEST_F(CliGenerateTest, MessagesAreAJsonArray) {
  const std::string input = R"([{"role": "system", "content": "Be brief."},
      {"content": null, "tool_calls": [{"b": 1, "a": 2}], "role": "assistant"}])";
  ASSERT_EQ(generate({"--messages"}, input).code, 0);
  v1::GenerateRequest expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(messages { messages { role: "system" content: "Be brief." }
                    messages { role: "assistant"
                               fields_json: '{"content":null,"tool_calls":[{"b":1,"a":2}]}' } })",
      &expected));
  EXPECT_EQ(request().DebugString(), expected.DebugString());
}

TEST_F(CliGenerateTest, MessagesOfAnotherFormAreRefused) {
  for (const char* input :
       {"", "{}", "[1]", "[{}]", R"([{"role": 1}])", R"([{"role": "user", "content": ["parts"]}])",
        R"([{"role": "user"}] x)"}) {
    const auto result = generate({"--messages"}, input);
    EXPECT_EQ(result.code, 2) << input;
    EXPECT_THAT(result.err, HasSubstr("standard input")) << input;
  }
  EXPECT_EQ(server_.inference.generate_requests().size(), 0u);
}

TEST_F(CliGenerateTest, ValuesThatHaveNamesAreSaidByThem) {
  const std::string help = generate({"--help"}).out;
  EXPECT_THAT(help, HasSubstr("--prefix TEXT:{off,use,use-and-keep}"));
  EXPECT_THAT(help, HasSubstr("--durability TEXT:{local,none,remote}"));
  const auto result = generate({"--prompt", "x", "--prefix", "2"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--prefix: wanted one of {off,use,use-and-keep}, found 2"));
}

TEST_F(CliGenerateTest, EveryFieldOfTheRequestHasAFlag) {
  const std::string help = generate({"--help"}).out;
  const std::map<std::string, std::string> renamed = {{"text", "--prompt"},
                                                      {"add_special_tokens", "--no-add-special"},
                                                      {"prefix_points", "--prefix-point"},
                                                      {"json", "--any-json"},
                                                      {"tools_json", "--tools"},
                                                      {"required", "--tool-choice"},
                                                      {"function", "--tool-choice"},
                                                      {"allowed", "--allow-tool"},
                                                      {"single", "--single-tool-call"},
                                                      {"stop_strings", "--stop"}};
  // Messages, and what is set if there is a terminal.
  const std::set<std::string> others = {"sampling", "stop", "constraint", "tool_use",
                                        "report_progress"};
  const auto check = [&](const google::protobuf::Descriptor* message) {
    for (int i = 0; i < message->field_count(); ++i) {
      const std::string& field = message->field(i)->name();
      if (others.count(field) > 0) continue;
      std::string flag = "--" + field;
      std::replace(flag.begin(), flag.end(), '_', '-');
      const auto other = renamed.find(field);
      EXPECT_THAT(help, HasSubstr(other == renamed.end() ? flag : other->second));
    }
  };
  check(v1::GenerateRequest::descriptor());
  check(v1::SamplingParams::descriptor());
  check(v1::StopConditions::descriptor());
  check(v1::Constraint::descriptor());
  check(v1::ToolUse::descriptor());
}

TEST_F(CliGenerateTest, RefusalIsTheServersSentence) {
  server_.inference.set_on_generate([](auto*, const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "sampling.top_p must be in (0, 1]");
  });
  const auto result = generate({"--prompt", "x"});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "recurve: INVALID_ARGUMENT: sampling.top_p must be in (0, 1]\n");
}

TEST_F(CliGenerateTest, UnknownSessionSaysHowToOpenIt) {
  const auto result = generate({"--prompt", "x", "--session", "s"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("recurve session open s"));
}

TEST_F(CliGenerateTest, ServerThatLoadsIsCodeFour) {
  server_.inference.set_on_generate(
      [](grpc::ServerContext* context, const auto&, auto*) { return loading(context); });
  const auto result = generate({"--prompt", "x"});
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.err, HasSubstr("UNAVAILABLE: the model loads"));
}

TEST_F(CliGenerateTest, LostConnectionIsCodeThreeAndKeepsTheText) {
  Relay relay(server_.port());
  std::promise<bool> cancelled;
  server_.inference.set_on_generate(endless(cancelled));
  CliProcess process({"generate", "--server", relay.address(), "--prompt", "x"});
  process.wait_for_output("aa");
  relay.cut();
  const auto result = process.finish();
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_TRUE(cancelled.get_future().get());
}

TEST_F(CliGenerateTest, TimeoutIsADeadline) {
  std::promise<bool> cancelled;
  server_.inference.set_on_generate(endless(cancelled));
  // Long enough for the request to reach the server on a machine that stands still for a while.
  const auto result = generate({"--prompt", "x", "--timeout", "4"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("DEADLINE_EXCEEDED"));
  auto ended = cancelled.get_future();
  ASSERT_EQ(ended.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_TRUE(ended.get());
}

TEST_F(CliGenerateTest, CtrlCCancelsTheRequest) {
  std::promise<bool> cancelled;
  server_.inference.set_on_generate(endless(cancelled));
  CliProcess process(arguments({"--prompt", "x"}));
  process.wait_for_output("aa");
  process.interrupt();
  const auto result = process.finish();
  EXPECT_EQ(result.code, 130);
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(cancelled.get_future().get());
}

TEST_F(CliGenerateTest, ReaderThatGoesEndsItQuietlyAndCancels) {
  std::promise<bool> cancelled;
  server_.inference.set_on_generate(endless(cancelled));
  CliProcess process(arguments({"--prompt", "x"}));
  process.wait_for_output("aa");
  process.close_output();
  const auto result = process.finish();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(cancelled.get_future().get());
}

TEST_F(CliGenerateTest, BytesThatAreNotUtf8AreNamed) {
  const auto result = generate({}, "abc\xff z");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("standard input must be valid UTF-8, the error is at byte 3 (0xff)"));
  EXPECT_TRUE(server_.inference.generate_requests().empty());
}

struct Utf8Case {
  const char* name;
  std::string text;
  int invalid_at;  // -1: nowhere
};

class Utf8Test : public CliGenerateTest, public ::testing::WithParamInterface<Utf8Case> {};

// The table of well-formed byte sequences in the Unicode standard (3-7), at its borders.
TEST_P(Utf8Test, IsJudgedByUnicodesTable) {
  const auto result = generate({}, GetParam().text);
  if (GetParam().invalid_at < 0) {
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(request().text(), GetParam().text);
  } else {
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, HasSubstr("byte " + std::to_string(GetParam().invalid_at) + " "));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Borders, Utf8Test,
    ::testing::Values(
        Utf8Case{"valid",
                 "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80"
                 "\xf4\x8f\xbf\xbf",
                 -1},
        Utf8Case{"zero_byte", std::string("a\0b", 3), -1}, Utf8Case{"overlong2", "a\xc1\xbf", 1},
        Utf8Case{"overlong3", "\xe0\x9f\xbf", 0}, Utf8Case{"surrogate", "ab\xed\xa0\x80", 2},
        Utf8Case{"overlong4", "\xf0\x8f\xbf\xbf", 0}, Utf8Case{"beyond", "\xf4\x90\x80\x80", 0},
        Utf8Case{"f5", "\xf5\x80\x80\x80", 0}, Utf8Case{"tail_alone", "a\x80", 1},
        Utf8Case{"cut2", "ab\xc3", 2}, Utf8Case{"cut3", "\xe2\x82", 0},
        Utf8Case{"cut4", "x\xf0\x9f\x98", 1}, Utf8Case{"bad_tail", "\xe2\x82z", 0}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace recurve::testing::cli_generate_test
