#pragma once
// Texts that a constraint names as they are, in each way in which it can name one: the answer must
// be that text and no other.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/constraint/constraint_library.h"
#include "tests/server/constraint/byte_vocabulary.h"

namespace recurve::testing {

struct Literal {
  ConstraintText constraint;
  std::string answer;   // to the byte, where it is not JSON
  nlohmann::json json;  // what the answer reads as, where it is
};

inline std::string escaped_for_regex(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("^$.*+?\\()[]{}|/-").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// `text` is UTF-8 and not empty.
inline std::vector<Literal> literals_of(const std::string& text) {
  using Form = ConstraintText::Form;
  using Json = nlohmann::json;
  const Json begin = {
      {"triggers", {text}},
      {"structures", {{{"begin", text}, {"schema", {{"const", 1}}}, {"end", text}}}},
      {"required", true},
      {"single", true}};
  const Json call = {{"name", "f"}, {"begin", text}, {"end", text}, {"schema", {{"const", 1}}}};
  const Json marked = {{"shape", "marked"}, {"mark", "<" + text}, {"close", text + ">"},
                       {"required", true},  {"single", true},     {"calls", {call}}};
  const Json named = {{"type", "object"},
                      {"properties", {{text, {{"const", 1}}}}},
                      {"required", {text}},
                      {"additionalProperties", false}};
  return {{{Form::kChoice, Json{text}.dump()}, text, {}},
          {{Form::kRegex, escaped_for_regex(text)}, text, {}},
          {{Form::kStructuralTag, begin.dump()}, text + "1" + text, {}},
          {{Form::kToolCalls, marked.dump()}, "<" + text + text + "1" + text + text + ">", {}},
          {{Form::kJsonSchema, Json{{"const", text}}.dump()}, "", text},
          {{Form::kJsonSchema, Json{{"enum", {{{text, text}}}}}.dump()}, "", {{text, text}}},
          {{Form::kJsonSchema, named.dump()}, "", {{text, 1}}}};
}

// One answer that the constraint allows, byte by byte, without white space where it may be left
// out; "several answers" where there is a choice of anything else, or no end.
inline std::string only_answer(const Constraint& constraint, size_t most_bytes) {
  const auto matcher = constraint.begin();
  std::vector<uint32_t> mask((byte_vocabulary().size() + 31) / 32);
  std::string answer;
  while (answer.size() <= most_bytes) {
    matcher->fill(mask);
    std::vector<char> bytes;
    for (const int32_t id : ids_of(mask)) {
      if (id >= 1 && id <= 256) bytes.push_back(static_cast<char>(id - 1));
    }
    if (bytes.empty() && matcher->may_end()) return answer;
    if (bytes.size() > 1) {
      std::erase_if(bytes, [](char byte) {
        return std::string_view(" \n\r\t").find(byte) != std::string_view::npos;
      });
    }
    if (bytes.size() != 1) break;
    answer += bytes.front();
    if (!matcher->accept(static_cast<unsigned char>(bytes.front()) + 1)) break;
  }
  return "several answers";
}

// "", or how the answer differs.
inline std::string difference(const Literal& literal, const Constraint& constraint) {
  const size_t most = 16 * (literal.constraint.text.size() + 64);
  const std::string answer = only_answer(constraint, most);
  const bool same = literal.json.is_null()
                        ? answer == literal.answer
                        : nlohmann::json::parse(answer, nullptr, false) == literal.json;
  return same ? "" : literal.constraint.text + " is answered by " + nlohmann::json(answer).dump();
}

}  // namespace recurve::testing
