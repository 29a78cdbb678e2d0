// The picture of what ranks do, from flight records that are made up here: no other process runs.

#include <algorithm>
#include <string>
#include <vector>

#include "common/messages/watchdog/rank_view.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// A rank whose latest collective of world has this number; @p open: it has not ended.
FlightRecord rank_in(std::int64_t number, bool open)
{
  FlightRecord record;
  record.span = "training step (frame.cpp:40)";
  CallRecord call;
  call.number = number;
  call.name = "all-reduce";
  call.label = "bucket";
  call.still_s = 1.25;
  call.ended_s = open ? -1 : 1;
  record.tracks = {{"world", {0, 1, 2}, 0, number, {call}, {}}};
  return record;
}

/// The lines of a picture, without what moves the cursor.
std::vector<std::string> lines_of(const std::string& picture)
{
  std::vector<std::string> lines;
  for (std::size_t at = picture.find("\n\r"); at != std::string::npos; at = picture.find("\n\r", at + 1))
    lines.push_back(picture.substr(at + 2, picture.find("\033[", at) - at - 2));
  return lines;
}

}  // namespace

TEST_CASE("RankView: who computes, sends and waits for whom; a moment further to the left with each picture")
{
  std::vector<FlightRecord> records = {rank_in(17, true), rank_in(16, false), rank_in(17, true)};
  records[2].working = true;
  const std::string past(23, ' ');
  RankView view;
  CHECK(lines_of(view.draw(records)) ==
        std::vector<std::string>{
            "rank 0  |" + past + ".| waits for rank 1: all-reduce \"bucket\" in world, for 1.2 s",
            "rank 1  |" + past + "#| training step",
            "rank 2  |" + past +
                "#| training step; beside it waits for rank 1: all-reduce \"bucket\" in world, for 1.2 s",
            "# computes   > sends and receives   . waits"});

  records = {rank_in(17, true), rank_in(17, true), rank_in(17, true)};
  TransferRecord sends;
  sends.sends = true;
  sends.peer = 1;
  sends.bytes = 4096;
  sends.collective = 17;
  TransferRecord receives = sends;
  receives.sends = false;
  receives.peer = 2;
  receives.bytes = 8;
  records[0].tracks[0].transfers = {sends, receives};
  records[1].answers = false;
  const std::vector<std::string> next = lines_of(view.draw(records));
  CHECK(next[0] ==
        "rank 0  |" + past.substr(1) +
            ".>| all-reduce \"bucket\" in world: sends 4,096 bytes to rank 1, receives 8 bytes from rank 2");
  CHECK(next[1] == "rank 1  |" + past.substr(1) + "# | does not answer");
}

TEST_CASE("RankView: the cursor ends where it was, and ranks for which there is no room are left out")
{
  const std::string three = RankView().draw(std::vector<FlightRecord>(3)),
                    many = RankView().draw(std::vector<FlightRecord>(40));
  CHECK(three.ends_with("\033[4A\r"));
  CHECK(std::ranges::count(three, '\n') == 4);
  CHECK(many.ends_with("\033[17A\r"));
  CHECK(std::ranges::count(many, '\n') == 17);
  CHECK(many.find("(24 more ranks)") != std::string::npos);
}
