#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/files/named_files.hpp"
#include "common/program/option_value.hpp"

/// @file
/// The options of a program, declared once: parsing, help, the printed table and the report all come from it.

namespace rankwise {

/// Thrown by OptionTable::parse() for `--help`; what() is the help text.
class HelpRequest : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The options of one program. Each is bound to a variable, whose content beforehand is the default.
///
/// Options are long and written `--name=value`. `--help` and `--config=FILE` are always there; a configuration file has
/// one `name = value` on a line, and `#` begins a comment. What the command line says wins over the file.
class OptionTable {
 public:
  /// @param program      name of the program, as "01_single_device".
  /// @param description  what it does, in one line.
  OptionTable(std::string program, std::string description);
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  /// Declares one option: @p T is int, std::int64_t, std::uint32_t, double, std::string, Bytes or bool (a flag).
  /// @param group  heading under which it is shown.
  /// @param name   without dashes; no other option has it.
  /// @param value  holds the default now and what the user asked for after parse(); outlives this table's parse().
  /// @param help   one sentence.
  /// @param kind   what stands for the value in the help, as "FILE"; empty: what suits the type.
  template <class T>
  void add(const std::string& group, const std::string& name, T& value, const std::string& help,
           const std::string& kind = "");

  /// Declares an option that names a file; empty: none. Otherwise as add().
  /// @param use  what the program does with it; files() lists it.
  void add_file(const std::string& group, const std::string& name, std::string& value, FileUse use,
                const std::string& help);

  /// Declares an option that takes one of a few words; otherwise as add().
  /// @param choices  each word and its value; the default is among the values.
  template <class Enum>
  void add_choice(const std::string& group, const std::string& name, Enum& value,
                  const std::vector<std::pair<std::string, Enum>>& choices, const std::string& help);

  /// Sets the variables. Nothing is replaced or rounded in silence: whole numbers fit their type, f64 are finite.
  /// @failure  UserError for whatever cannot be read; HelpRequest for `--help`. The variables are then unspecified.
  void parse(int argc, char** argv);

  /// Whether the user set this option, on the command line or in the file.
  bool given(const std::string& name) const;

  /// Whether there is a flag of this name, and it is set.
  bool is_set(const std::string& name) const;

  /// The files that the options name, once they are parsed: those with a name that is not empty.
  std::vector<NamedFile> files() const;

  /// The text of `--help`: all options by group, with kind and default.
  std::string help() const;
  /// A line for each option that the user set: name, value, what it is. For the start of a run; empty without any.
  std::string table() const;
  /// All options and their values by name; bytes are numbers.
  nlohmann::json json() const;

 private:
  /// One option; the functions reach the variable that it is bound to.
  struct Entry {
    std::string group, name, help;
    std::string kind;                                       // what is shown after "=", as "INT"; empty for a flag
    std::function<std::string(const std::string&)> assign;  // returns what was expected if the text does not do
    std::function<std::string()> text;                      // the value as it would be typed
    std::function<nlohmann::json()> json;
    std::vector<std::string> choices;
    std::string default_text;
    std::optional<FileUse> use;  // of an option that names a file
    bool given = false;
  };

  void add_entry(Entry entry);
  const Entry* find(const std::string& name) const;
  void read_config_file(const std::string& path);
  void set(Entry& entry, const std::string& text, const std::string& asked);
  [[noreturn]] void refuse_without_value(const std::string& option) const;
  void refuse_extras(const std::vector<std::string>& extras) const;
  [[noreturn]] void refuse_unknown(const std::string& name, const std::string& asked) const;

  std::string program_, description_;
  std::string config_;  // path, empty without a configuration file
  std::vector<Entry> entries_;
};

template <class Enum>
void OptionTable::add_choice(const std::string& group, const std::string& name, Enum& value,
                             const std::vector<std::pair<std::string, Enum>>& choices, const std::string& help)
{
  Entry entry;
  entry.group = group;
  entry.name = name;
  entry.help = help;
  for (const auto& [word, meaning] : choices) {
    entry.kind += (entry.kind.empty() ? "" : "|") + word;
    entry.choices.push_back(word);
  }
  entry.assign = [&value, choices](const std::string& text) -> std::string {
    for (const auto& [word, meaning] : choices) {
      if (word != text) continue;
      value = meaning;
      return "";
    }
    return "one of its choices";
  };
  entry.text = [&value, choices]() -> std::string {
    for (const auto& [word, meaning] : choices) {
      if (meaning == value) return word;
    }
    return "?";
  };
  entry.json = entry.text;
  add_entry(std::move(entry));
}

}  // namespace rankwise
