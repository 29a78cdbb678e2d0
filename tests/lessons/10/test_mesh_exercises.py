"""Parts of lesson 10's program outside of all exercises, beside lesson 01.

    test_mesh_exercises.py 10 PREPARE LESSON_01 LESSON
"""

import exercise_case


def mesh(dp, tp, pp):
    return [f"--dp={dp}", f"--tp={tp}", f"--pp={pp}"]


class Lesson(exercise_case.ExerciseCase):
    OPTIONS = ["--layers=4"]  # two stages on each of two ranks

    def assert_steps(self, *options):
        report = self.assert_steps_of_lesson_01(4, *options)
        self.assertEqual(report["validation"], self.expected["validation"])
        for what, sent in report["traffic"].items():
            self.assertEqual(sent["bytes"], sent["formula"], what)

    def test_replicas_of_pipelines(self):
        self.assert_steps(*mesh(2, 1, 2), "--schedule=interleaved", "--micro-batch=1")

    def test_replicas_of_parts_that_keep_all_optimizer_states(self):
        self.assert_steps(*mesh(2, 2, 1), "--zero=0", "--sequence-parallel", "--micro-batch=2")

    def test_pipelines_of_parts(self):
        self.assert_steps(*mesh(1, 2, 2), "--recompute=block", "--micro-batch=2",
                          "--sequence-parallel")


if __name__ == "__main__":
    exercise_case.main({"10": Lesson})
