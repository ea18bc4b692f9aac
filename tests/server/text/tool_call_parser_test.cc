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
const ToolForm& qwen() { return form("<function= <parameter="); }
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
Outcome read(const ToolForm& form, const std::vector<std::string>& pieces, bool exclusive = false) {
  static const ToolTypes kTypes = {{"f",
                                    {.types = {{"s", kStringType},
                                               {"n", kNumberType},
                                               {"b", kBooleanType},
                                               {"o", kObjectType | kArrayType},
                                               {"maybe", kStringType | kNullType}}}}};
  ToolCallParser parser(form, &kTypes, exclusive);
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
void expect(const ToolForm& form, const std::string& text, const Outcome& wanted,
            bool exclusive = false) {
  EXPECT_EQ(read(form, {text}, exclusive), wanted) << text;
  std::vector<std::string> bytes;
  for (const char byte : text) bytes.emplace_back(1, byte);
  EXPECT_EQ(read(form, bytes, exclusive), wanted) << text << ", byte by byte";
  for (size_t cut = 1; cut < text.size(); ++cut) {
    EXPECT_EQ(read(form, {text.substr(0, cut), text.substr(cut)}, exclusive), wanted)
        << text.substr(0, cut) << "|" << text.substr(cut);
  }
}

TEST(ToolCallParser, AnAnswerThatIsEitherHasCallsWhereItBeginsWithOne) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  const std::string marked = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
  const std::string listed = "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]";
  for (const auto& [form, text] :
       {std::pair(&hermes(), &call), std::pair(&qwen(), &marked), std::pair(&mistral(), &listed)}) {
    expect(*form, *text, {"", {{"f", "{}"}}, 1}, true);
    expect(*form, "\n" + *text, read(*form, {"\n" + *text}, false), true);
    for (const std::string& json : {"{\"a\": \"" + *text + "\"}", "[" + *text, "\"" + *text}) {
      expect(*form, json, {json, {}, 0}, true);
    }
  }
  expect(hermes(), call + "\n" + call, {"", {{"f", "{}"}, {"f", "{}"}}, 2}, true);
  expect(mistral(), "[", {"[", {}, 0}, true);
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

TEST(ToolCallParser, ParametersByTheirTypes) {
  const auto call = [](const std::string& parameters) {
    return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
  };
  const auto parameter = [](const std::string& name, const std::string& value) {
    return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
  };
  const auto has = [&](const std::string& parameters, const std::string& arguments) {
    expect(qwen(), call(parameters), {"", {{"f", arguments}}, 1});
  };
  has("", "{}");
  has(parameter("s", "Paris"), R"({"s": "Paris"})");
  has(parameter("s", "5"), R"({"s": "5"})");
  has(parameter("s", ""), R"({"s": ""})");
  has(parameter("s", "\n\"a\" \\ \t<b>\n</par\n"), R"({"s": "\n\"a\" \\ \t<b>\n</par\n"})");
  has(parameter("s", "\xc3\xa9"), "{\"s\": \"\xc3\xa9\"}");
  has(parameter("n", "5") + parameter("b", "true"), R"({"n": 5, "b": true})");
  has(parameter("b", "False"), R"({"b": false})");
  has(parameter("n", "five"), R"({"n": "five"})");
  has(parameter("o", R"({"x": ["</parameter>"]})"), R"({"o": {"x": ["</parameter>"]}})");
  has(parameter("maybe", "null"), R"({"maybe": null})");
  has(parameter("maybe", "nullable"), R"({"maybe": "nullable"})");
  has(parameter("maybe", "5"), R"({"maybe": "5"})");
  has(parameter("unknown", "5") + parameter("more", "five"), R"({"unknown": 5, "more": "five"})");
  has("<parameter=s>Paris</parameter>", R"({"s": "Paris"})");
  has("\n <parameter=s>\nParis</parameter>\t\n\n", R"({"s": "Paris"})");
  // Another tool, whose types are not known.
  expect(qwen(), "<tool_call><function=g><parameter=x>\n1\n</parameter></function></tool_call>",
         {"", {{"g", R"({"x": 1})"}}, 1});
  expect(qwen(), "So.\n\n" + call("") + "\n" + call(parameter("n", "1")) + "\n",
         {"So.\n\n", {{"f", "{}"}, {"f", R"({"n": 1})"}}, 2});
  expect(qwen(), "<tool_call>\n<function=f>\n" + parameter("n", "1") + "</tool_call> Done.",
         {" Done.", {{"f", R"({"n": 1})"}}, 1});
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
  for (const char* text : {"<tool_call>\nhello", "<tool_call>\n<function",
                           "<tool_call>\n<function=>\n</function>", "<tool_call>\n<function=f",
                           "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"}) {
    expect(qwen(), text, {text, {}, 0});
  }
  const std::string long_name = "<tool_call>\n<function=" + std::string(5000, 'n');
  EXPECT_EQ(read(qwen(), {long_name}), (Outcome{long_name, {}, 0}));
  const std::string long_head = "<tool_call>{\"name\": \"" + std::string(5000, 'n');
  EXPECT_EQ(read(hermes(), {long_head}), (Outcome{long_head, {}, 0}));
}

TEST(ToolCallParser, ACallThatHasBeenCutIsNotWhole) {
  expect(hermes(), "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1",
         {"", {{"f", "{\"a\": 1"}}, 0});
  expect(mistral(),
         R"([TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {")",
         {"", {{"f", "{}"}, {"g", "{\""}}, 1});
  const std::string head = "<tool_call>\n<function=f>\n";
  expect(qwen(), head, {"", {{"f", "{"}}, 0});
  expect(qwen(), head + "<parameter=s>\nPar", {"", {{"f", R"({"s": "Par)"}}, 0});
  expect(qwen(), head + "<parameter=s>\nParis\n</para", {"", {{"f", R"({"s": "Paris)"}}, 0});
  expect(qwen(), head + "<parameter=n>\n12", {"", {{"f", R"({"n": )"}}, 0});
  expect(qwen(), head + "12</function>", {"12</function>", {{"f", "{"}}, 0});
  const std::string long_name = "<parameter=" + std::string(5000, 'n');
  expect(qwen(), head + long_name + ">\n1", {long_name + ">\n1", {{"f", "{"}}, 0});
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
                                          "<function=f>",
                                          "</function>",
                                          "<parameter=s>",
                                          "<parameter=o>",
                                          "</parameter>",
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
    for (const ToolForm* form : {&hermes(), &mistral(), &nemotron(), &qwen(), &llama()}) {
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
  EXPECT_EQ(of_file("xml_tools"), "qwen3.5");
  for (const char* none : {"chatml", "llama3", "gemma", "zephyr", "mistral_v1"}) {
    EXPECT_EQ(of_file(none), "") << none;
  }
  EXPECT_EQ(tool_form_names(), "qwen3.5, hermes, mistral, nemotron, llama-3");
}

}  // namespace
}  // namespace recurve::tool_call_parser_test
