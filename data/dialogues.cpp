#include "data/dialogues.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "data/corpus.hpp"

namespace rankwise {

namespace {

// Six kinds of questions. The first word or two of a question show its kind, and so does the first word of an answer.
constexpr std::string_view rules_of_dialogues = R"(
Talk:     1 who {Link}s {Thing}?/{Person} does.
        | 1 where does {Thing} {Act}?/{Near} {The} {Place}.
        | 1 when does {Thing} {Act}?/at {Hour} {Half}.
        | 1 how many {Animals} {Act}?/{Count} of them do.
        | 1 what colour is {Thing}?/it is {Colour}.
        | 1 why does {Thing} {Act}?/because {One} is {Mood}.
Thing:    2 {One} | 1 {The} {Size} {Noun}
One:      1 {The} {Noun}
Animals:  2 {Noun}s | 1 {Size} {Noun}s
The:      3 the | 1 her | 1 our
Size:     1 big | 1 odd | 1 old | 1 shy | 1 sly
Noun:     1 ant | 1 bat | 1 bee | 1 cat | 1 cow | 1 dog | 1 hen | 1 owl | 1 pig | 1 rat | 1 crow | 1 duck | 1 frog
        | 1 goat | 1 mole | 1 toad
Link:     1 see | 1 hear | 1 like | 1 meet | 1 feed | 1 find | 1 help | 1 lead
Act:      1 dig | 1 eat | 1 hum | 1 nap | 1 sit | 1 hide | 1 jump | 1 play | 1 sing | 1 swim
Person:   1 ana | 1 ben | 1 eva | 1 tom
Near:     2 by | 1 in | 1 near
Place:    1 barn | 1 gate | 1 hill | 1 lake | 1 mill | 1 pond | 1 road | 1 well
Hour:     1 1 | 1 2 | 1 3 | 1 4 | 1 5 | 1 6 | 1 7 | 1 8 | 1 9
Half:     1 am | 1 pm
Count:    1 2 | 1 3 | 1 4 | 1 5 | 1 6 | 1 7 | 1 8 | 1 9
Colour:   1 red | 1 grey | 1 blue | 1 green | 1 white
Mood:     1 sad | 1 cold | 1 glad | 1 hungry
)";

constexpr std::uint32_t dialogue_seed = 1;
constexpr std::size_t dialogue_bytes = 300'000;
constexpr std::size_t train_bytes = dialogue_bytes / 10 * 9;

}  // namespace

const Grammar& dialogue_grammar()
{
  static const Grammar grammar(rules_of_dialogues);
  return grammar;
}

Tokens embedded_dialogues()
{
  std::string text;
  std::size_t cut = 0;
  for (std::uint32_t number = 0; text.size() < dialogue_bytes; ++number) {
    std::string conversation = dialogue_grammar().sentence(dialogue_seed, number) + '\n';
    std::replace(conversation.begin(), conversation.end(), '/', '\n');
    text += conversation;
    if (cut == 0 && text.size() >= train_bytes) cut = text.size();
  }
  return tokens_of_bytes(text, cut, "the embedded dialogues");
}

}  // namespace rankwise
