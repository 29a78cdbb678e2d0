"""JUnit XML, which GitLab, Jenkins and others show: a suite for each student, a case for each exercise.

Elements and attributes are those of Jenkins's schema:
https://github.com/jenkinsci/xunit-plugin/blob/master/src/main/resources/org/jenkinsci/plugins/xunit/types/model/xsd/junit-10.xsd
"""

import re
import xml.etree.ElementTree as ET

ELEMENT = {"not implemented": "skipped", "not answered": "skipped", "failed": "failure"}  # anything else: error
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0


def text_of(grades):
    suites = ET.Element("testsuites", name="rankwise")
    for grade in grades:
        kinds = [ELEMENT.get(row["verdict"], "error") for row in grade["exercises"] if row["verdict"] != "passed"]
        suite = ET.SubElement(suites, "testsuite", name=FORBIDDEN.sub("?", grade["student"]), tests=str(len(grade["exercises"])),
                              failures=str(kinds.count("failure")), errors=str(kinds.count("error")),
                              skipped=str(kinds.count("skipped")), timestamp=grade["date"].rstrip("Z"))
        for row in grade["exercises"]:
            case = ET.SubElement(suite, "testcase", name=FORBIDDEN.sub("?", f"{row['exercise']} {row['title']}"),
                                 classname=f"lesson-{row['exercise'].split('.')[0]}")
            if row["verdict"] != "passed":
                what = ET.SubElement(case, ELEMENT.get(row["verdict"], "error"), type=row["verdict"],
                                     message=f"{row['verdict']}, {row['points']} of {row['of']} points")
                what.text = FORBIDDEN.sub("?", row["detail"])
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"
