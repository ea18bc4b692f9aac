#include "server/text/chat/tool_call_parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

namespace recurve::tool_call_parser_test {
namespace {

const ToolForm& form(std::string_view signs) { return *tool_form_of(signs); }
const ToolForm& hermes() { return form("<tool_call>\"arguments\""); }
const ToolForm& mistral() { return form("[TOOL_CALLS]"); }
const ToolForm& nemotron() { return form("<TOOLCALL>"); }
const ToolForm& llama() { return form("<|start_header_id|> \"parameters\": "); }

struct Outcome {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // name and arguments
  int32_t whole = 0;
  bool operator==(const Outcome&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Outcome& of) {
  out << '"' << of.text << "\", " << of.whole << " whole";
  for (const auto& [name, arguments] : of.calls) out << ", " << name << "(" << arguments << ")";
  return out;
}

// What is read of a text that comes in these pieces.
Outcome read(const ToolForm& form, const std::vector<std::string>& pieces) {
  ToolCallParser parser(form);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    std::vector<ToolCallPart> parts;
    parser.feed(piece, &outcome.text, &parts);
    for (const ToolCallPart& part : parts) {
      const auto index = static_cast<size_t>(part.index);
      EXPECT_EQ(index == outcome.calls.size(), !part.name.empty());
      if (index == outcome.calls.size()) outcome.calls.emplace_back(part.name, "");
      EXPECT_EQ(index + 1, outcome.calls.size());
      outcome.calls.back().second += part.arguments;
    }
  }
  parser.finish(&outcome.text);
  outcome.whole = parser.whole_calls();
  return outcome;
}

// However the text is cut, the same is read of it.
void expect(const ToolForm& form, const std::string& text, const Outcome& wanted) {
  EXPECT_EQ(read(form, {text}), wanted) << text;
  std::vector<std::string> bytes;
  for (const char byte : text) bytes.emplace_back(1, byte);
  EXPECT_EQ(read(form, bytes), wanted) << text << ", byte by byte";
  for (size_t cut = 1; cut < text.size(); ++cut) {
    EXPECT_EQ(read(form, {text.substr(0, cut), text.substr(cut)}), wanted)
        << text.substr(0, cut) << "|" << text.substr(cut);
  }
}

TEST(ToolCallParser, CallsBetweenMarks) {
  const std::string one =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": [1, {}]}}\n</tool_call>";
  expect(hermes(), one, {"", {{"add", "{\"a\": [1, {}]}"}}, 1});
  expect(hermes(), "Let me see.\n" + one, {"Let me see.\n", {{"add", "{\"a\": [1, {}]}"}}, 1});
  expect(hermes(), one + "\n" + one + "\n",
         {"", {{"add", "{\"a\": [1, {}]}"}, {"add", "{\"a\": [1, {}]}"}}, 2});
  expect(hermes(), one + " Done.", {" Done.", {{"add", "{\"a\": [1, {}]}"}}, 1});
  // Other white space, and what looks like an end within a string.
  expect(hermes(),
         R"(<tool_call> { "name":"f","arguments" : {"a":"}\"}</tool_call>\\"} } </tool_call>)",
         {"", {{"f", R"({"a":"}\"}</tool_call>\\"})"}}, 1});
}

TEST(ToolCallParser, AList) {
  expect(mistral(), R"([TOOL_CALLS] [{"name": "f", "arguments": {}}])", {"", {{"f", "{}"}}, 1});
  expect(
      mistral(),
      R"(So: [TOOL_CALLS][{"name": "f", "arguments": {"x": "]"}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}])",
      {"So: ", {{"f", R"({"x": "]"})"}, {"g", "{}"}}, 2});
}

TEST(ToolCallParser, AListBetweenMarks) {
  const std::string list =
      R"(<TOOLCALL>[{"name": "f", "arguments": {"x": "]</TOOLCALL>"}}, {"name": "g", "arguments": {}}])";
  const std::vector<std::pair<std::string, std::string>> calls = {{"f", R"({"x": "]</TOOLCALL>"})"},
                                                                  {"g", "{}"}};
  expect(nemotron(), list + "</TOOLCALL>", {"", calls, 2});
  expect(nemotron(), "So: " + list + "\n</TOOLCALL>", {"So: ", calls, 2});
  expect(nemotron(), list, {"", calls, 2});
  expect(nemotron(), list + "</TOOLCALL>. Done.", {". Done.", calls, 2});
}

TEST(ToolCallParser, AnAnswerThatIsACall) {
  expect(llama(), R"({"name": "f", "parameters": {"q": "{"}})", {"", {{"f", R"({"q": "{"})"}}, 1});
  expect(llama(), R"(It is {"name": "f", "parameters": {}})",
         {R"(It is {"name": "f", "parameters": {}})", {}, 0});
  expect(llama(), "", {"", {}, 0});
}

TEST(ToolCallParser, WhatIsNoCallIsText) {
  for (const char* text :
       {"a < b", "<tool_call", "<tool_call>\nhello", "<tool_call>\n{\"name\": \"f\"",
        "<tool_call>{\"name\": \"f\", \"arguments\": 3}", "<tool_call>{\"x\": 1}",
        "<tool_<tool_call", "  "}) {
    expect(hermes(), text, {text, {}, 0});
  }
  expect(mistral(), "[TOOL_CALLS] none", {"[TOOL_CALLS] none", {}, 0});
  expect(llama(), R"({"city": "Paris"})", {R"({"city": "Paris"})", {}, 0});
  const std::string long_head = "<tool_call>{\"name\": \"" + std::string(5000, 'n');
  EXPECT_EQ(read(hermes(), {long_head}), (Outcome{long_head, {}, 0}));
}

TEST(ToolCallParser, ACallThatHasBeenCutIsNotWhole) {
  expect(hermes(), "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1",
         {"", {{"f", "{\"a\": 1"}}, 0});
  expect(mistral(),
         R"([TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {")",
         {"", {{"f", "{}"}, {"g", "{\""}}, 1});
}

// No text makes it lose or repeat anything, or stop.
TEST(ToolCallParser, OfAnyTextNothingIsLostOutsideOfCalls) {
  std::mt19937 random(1);
  const std::vector<std::string> words = {"<tool_call>",
                                          "</tool_call>",
                                          "[TOOL_CALLS]",
                                          "<TOOLCALL>",
                                          "</TOOLCALL>",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          "\"",
                                          "\\",
                                          "\"name\": \"f\"",
                                          ", ",
                                          "\"arguments\": ",
                                          "\"parameters\": ",
                                          " ",
                                          "\n",
                                          "x"};
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> pieces;
    std::string text;
    for (int i = 0; i < 12; ++i) {
      pieces.push_back(words[random() % words.size()]);
      text += pieces.back();
    }
    for (const ToolForm* form : {&hermes(), &mistral(), &nemotron(), &llama()}) {
      const Outcome whole = read(*form, {text});
      EXPECT_EQ(read(*form, pieces), whole) << form->name << ": " << text;
      if (!whole.calls.empty()) continue;
      EXPECT_EQ(whole.text, text) << form->name;
    }
  }
}

// The templates that the tests hold.
TEST(ToolForms, AreFoundFromTheTemplate) {
  const auto of_file = [](const std::string& name) {
    std::ifstream file(std::string(RECURVE_SOURCE_DIR) + "/tests/golden/chat_template/" + name +
                       ".jinja");
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_FALSE(text.str().empty()) << name;
    const ToolForm* form = tool_form_of(text.str());
    return form == nullptr ? "" : std::string(form->name);
  };
  EXPECT_EQ(of_file("hermes_tools"), "hermes");
  EXPECT_EQ(of_file("qwen_thinking"), "hermes");
  EXPECT_EQ(of_file("mistral_tools"), "mistral");
  EXPECT_EQ(of_file("llama3_tools"), "llama-3");
  EXPECT_EQ(of_file("think_words"), "nemotron");
  for (const char* none : {"chatml", "llama3", "gemma", "zephyr", "mistral_v1", "xml_tools"}) {
    EXPECT_EQ(of_file(none), "") << none;
  }
  EXPECT_EQ(tool_form_names(), "hermes, mistral, nemotron, llama-3");
}

}  // namespace
}  // namespace recurve::tool_call_parser_test
