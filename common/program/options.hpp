#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/files/named_files.hpp"
#include "common/program/option_value.hpp"

/// @file
/// The options of a program, declared once: parsing, help, printed table and report all use the one declaration.

namespace rankwise {

/// Thrown by OptionTable::parse() for `--help`; what() is the help text.
class HelpRequest : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A condition under which an option does something.
struct Effect {
  const char* option;   ///< its name
  bool works;           ///< true if it does something in this run
  std::string why_not;  ///< reason why it does nothing, to complete "--top-k=5 ...", as "without --sample"
  std::string remedy;   ///< advice other than to leave it out
};

/// The options of one program. Each is bound to a variable, whose initial value is the default.
///
/// Options have the form `--name=value`. `--help` and `--config=FILE` always exist; the command line takes precedence over the
/// file. A configuration file is UTF-8 and has one `name = value` per line; dashes before a name are skipped. A value is the
/// rest of the line, without blanks at its ends; or in "..." a string as JSON has it, with escapes; or in '...' a literal. A
/// comment begins with # at the beginning of a line, after a value in quotes, between blanks, and where the option cannot have
/// it in its value.
class OptionTable {
 public:
  /// @param program      name of the program, as "01_single_device".
  /// @param description  its purpose, in one line.
  OptionTable(std::string program, std::string description);
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  /// Declares one option; an option of type bool is a flag.
  /// @param group  heading under which it is shown.
  /// @param name   name without dashes, unique.
  /// @param value  holds the default now and the user's value after parse(); must outlive parse().
  /// @param help   one sentence.
  /// @param kind   placeholder for the value in the help, as "FILE"; empty: the default for the type.
  void add(const std::string& group, const std::string& name, OptionVariable value, const std::string& help,
           const std::string& kind = "");

  /// Declares an option that names a file; empty: none. Otherwise as add().
  /// @param use   the program's use of the file; files() lists it.
  /// @param kind  as in NamedFile.
  void add_file(const std::string& group, const std::string& name, std::string& value, FileUse use,
                const std::string& help, std::string_view kind = {});

  /// Declares an option that takes one of a few words; otherwise as add().
  /// @param choices  words and their values; the default is one of the values.
  template <class Enum>
  void add_choice(const std::string& group, const std::string& name, Enum& value,
                  const std::vector<std::pair<std::string, Enum>>& choices, const std::string& help);

  /// Parses the options and sets the variables. No value is replaced or rounded silently: integers must fit their
  /// type, f64 must be finite.
  /// @failure  UserError if anything cannot be parsed; HelpRequest for `--help`. The variables are then
  ///           unspecified.
  void parse(int argc, char** argv);

  /// Sets options from a configuration file.
  /// @param asked    how the user named the file, as "--config=FILE".
  /// @failure  UserError, as parse().
  void read_file(const std::string& path, const std::string& asked);

  /// Name of the program.
  const std::string& program() const { return program_; }

  /// True if the user set this option, on the command line or in the file.
  bool given(const std::string& name) const;

  /// True if a flag of this name exists and is set.
  bool is_set(const std::string& name) const;

  /// Refuses options that the user set to another value than the default although they do nothing in this run.
  /// @param effects  effects of options of this program and of others.
  /// @throws UserError  for the first of them.
  void check_effects(const std::vector<Effect>& effects) const;

  /// The files that the parsed options name; options with an empty name are omitted.
  std::vector<NamedFile> files() const;

  /// The text of `--help`: all options by group, with kind and default.
  std::string help() const;
  /// One line for each option that the user set: name, value, description; empty if none.
  std::string table() const;
  /// All options and their values by name; Bytes are numbers.
  nlohmann::json json() const;

 private:
  /// One option; its functions access the variable to which it is bound.
  struct Entry {
    std::string group, name, help;
    std::string kind;                                       // placeholder after "=", as "INT"; empty for a flag
    std::function<std::string(const std::string&)> assign;  // returns the expected form if the text is invalid
    std::function<std::string()> text;                      // the value as a user would type it
    std::function<nlohmann::json()> json;                   // without one, a report has the text
    std::vector<std::string> choices;
    std::string default_text;
    std::optional<FileUse> use;  // use of the file, if the option names one
    std::string_view sealed_as;  // kind of that file in NamedFile
    bool given = false;
  };

  void add_entry(Entry entry);
  const Entry* find(const std::string& name) const;
  void set(Entry& entry, const std::string& text, const std::string& asked);
  /// The text after each entry's name on the command line; empty if it is not given.
  std::vector<std::optional<std::string>> split(const std::vector<std::string>& words) const;
  [[noreturn]] void refuse_without_value(const Entry& entry) const;
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
  add_entry(std::move(entry));
}

}  // namespace rankwise
