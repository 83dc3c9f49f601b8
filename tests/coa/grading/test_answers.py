# ruff: noqa: E501, RUF001
r"""Answers as models, users and published data sets write them, by kind: what each accepted answer takes, and what not.

Comparisons run in this process; tests/coa/grading/test_equivalence.py has the child process and the benchmarks.
"""

import pytest

from coa.grading.equivalence import equality
from coa.grading.latex import expression_of
from coa.grading.mathematics.equal import Equal
from coa.grading.notation import bare

Kind = dict[str, tuple[str, ...]]
"""Answers by accepted answer."""

RIGHT: dict[str, Kind] = {
    "fonts, colours and boxes": {
        "27": (
            r"\color{blue}27", r"\color{blue}{27}", r"{\color{red}27}", r"\textcolor{blue}{27}", r"\underline{27}",
            r"\textcolor[rgb]{1,0,0}{\mathbf{27}}", r"\large 27", r"\Huge{27}", r"{\bf 27}", r"\texttt{27}",
            r"\emph{27}",
            r"\colorbox{yellow}{$27$}", r"\fcolorbox{red}{white}{27}", r"\ensuremath{27}", r"\hspace{1em}27", r"27\\",
            r"\left.27\right.", r"\boxed{\underline{\textbf{27}}}", r"\color{red}{\boxed{27}}", r"\boxed 27",
            r"\therefore 27",
        ),
        r"\frac{1}{2}": (r"\textcolor{red}{\frac{1}{2}}", r"\boxed{\color{blue}\dfrac12}", r"\underline{\frac12}"),
    },
    "Markdown": {
        "4": (r"\boxed{**4**}", r"\boxed{`4`}", "`4`", "``4``", "```\n4\n```", "*4*", "__4__", "$`4`$", "“4”",
        "<b>4</b>"),
        r"\sqrt{2}": ("`√2`", "**√2**", "`sqrt(2)`", "`math.sqrt(2)`"),
    },
    "GSM8K": {
        "42": ("#### 42", "6*7 = <<6*7=42>>42\n#### 42", "####42", "#### $42", "#### 42.", "#### **42**",
        "#### 42 apples"),
        "He buys 36 more, 6+36=<<6+36=42>>42.\n#### 42": ("42", r"\boxed{42}", "42.0", "#### 42"),
        "70,000": ("#### 70,000", "70000", "#### $70,000"),
    },
    "sentences": {
        "27": (
            "27, because there are 3 choices for each of 3 places.", "27 since there are 30 students and 3 leave",
            "The answer is 27. This is because 3 times 9 is 27.",
            "The total number of ways is 27, since order matters.",
            "Final Answer: The final answer is $27$. I hope it is correct.", r"\boxed{27. This is the number of ways.}",
            "Thus, $x = 27$.", "So we get 27.", "I get 27.", "it's 27", "A: 27", "Answer - 27",
            r"\boxed{\text{The answer is }27}",
            "27\n\nThis follows from the above.", r"\boxed{x = 27, \text{ since } x>0}",
        ),
        "yes": ("yes, because x>0", "Yes since 3 < 5"),
    },
    "other languages": {
        "27": (
            "答案：27", "答案是27", "故答案为：27", "所以答案是 $27$。", "答：27元", "答えは27です。", "答え：27", "정답은 27입니다.",
            "Die Antwort ist 27.", "La réponse est 27.", "La respuesta es 27.", "Réponse : 27", "Ответ: 27",
            "27个", "27通り", "27円", "27명", "27元", "27 km", "27 Äpfel", "27。",
        ),
    },
    "full-width signs": {
        "3, 5": ("3，5", "3、5", "3；5", "x=3或x=5", "3和5"), "(3, 5)": ("（3，5）", "（3, 5）", "(3，5)"), "4": ("x＝4", "４",
        "＝4"),
        "-3": ("－3", "﹣3", "\u20143"), "x+1": ("x＋1", "ｘ＋１"), r"35\%": ("35％", "３５％"), "x>3": ("x＞3",),
        "12:30": ("12：30",),
        "1000000007": ("1，000，000，007", "１００００００００７"), "C": ("Ｃ", "（C）", "选C", "故选：C", "C．12", "C、12"),
    },
    "brackets outward and signed infinities": {
        r"(2,\infty)": (
            r"(2,+\infty)", "(2,+∞)", r"]2,\infty[", r"\left]2;+\infty\right[", "（2，＋∞）", r"x\in]2,+\infty[",
            r"\{x\in\mathbb{R}\mid x>2\}", "{x|x>2}", r"x \gt 2", r"(2,\ +\infty)",
        ),
        "[0,1)": ("[0,1[", r"\left[0,1\right[", "[0;1[", "［0，1）", r"0 \leqslant x < 1"),
        r"(-\infty,0)\cup(0,\infty)": (
            r"]-\infty,0[\cup]0,+\infty[", r"(-\infty,0) U (0,\infty)", r"x<0 \text{ or } x>0",
            r"\mathbb{R}\backslash\{0\}",
        ),
        "1<x<2": ("]1,2[", "2>x>1", r"x>1 \text{ and } x<2"),
    },
    "named sets": {
        r"\mathbb{R}": (r"(-\infty,+\infty)", "ℝ", r"\mathbb R", r"\R", "all real numbers", r"x\in\mathbb{R}",
        r"]-\infty,\infty["),
        r"(-\infty,\infty)": (r"\mathbb{R}", r"\text{all real numbers}", r"-\infty<x<\infty"),
        r"\emptyset": (r"\{\}", "∅", r"\varnothing", "empty set"),
    },
    "units and currencies": {
        "27": ("27 (miles)", "27 (in miles)", r"27\text{ (miles)}", r"27\,(\text{miles})", "27 €", "27£", "¥27",
        "USD 27", "US$27"),
        r"\sqrt{2}": (r"\sqrt{2} (\approx 1.414)",), r"90^\circ": ("90º", "90度", r"90\text{°}"),
        r"100\text{ cm}": ("1 m", "100㎝"),
    },
    "bases": {
        "11111_2": (r"11111_{\text{two}}", "11111₂", r"(11111)_{\text{two}}", "11111 in binary"),
        "43_5": (r"43_\text{five}", "43 in base five", r"43_{\mathrm{five}}"), "-43_5": (r"-43_{\text{five}}", "-43"),
        "1A_{16}": ("1a_{16}", r"\text{1A}_{\text{sixteen}}"),
    },
    "choices with their text": {
        "C": (
            r"\textbf{(C)}\ 12", r"\text{(C) }12", "C: the third", "C. 12", "C) 12", "(C) x^2 + 1",
            r"\boxed{C. \frac{1}{2}}",
            r"\boxed{\textbf{(C) }\frac12}", "C: 3, 5", "Option C", "The correct answer is C: because it is",
            "**C. 12**", "C - the third",
        ),
        r"\text{(E)}": (r"\textbf{(E)}\ 2^{10}", "E. none"), "D": ("D. y = 2x", "D: $x=5$"),
    },
    "functions and complex numbers": {
        "e^3": ("exp(3)", r"\mathrm{e}^3", r"\operatorname{exp}(3)", "e**3"), "e^{-2}": ("exp(-2)", "e**-2"),
        "5-i": ("5-1j", "5 - 1*I", "5-1i", "(5-1j)"), "3+4i": ("3+4j", "3+4*I", r"3+4\mathrm{i}", "3.0+4.0j"),
        "2i": ("2j", "2*I"),
    },
    "numbers of other notations": {
        "7": ("7.0", "7.00", "７．０"), "7.0": ("7", "7.00", r"\boxed{7}", "7 apples"), "1500.0": ("1500", "1,500",
        "$1,500.00"),
        "1e-05": ("0.00001", r"10^{-5}"), "1e-13": (r"\frac{1}{10^{13}}", r"10^{-13}"), "1000000": ("1 million",
        "100万", "1e6"),
        r"\frac{1}{3}": (r"0.\overline{3}", r"0.\dot{3}", "⅓", r"{1 \over 3}"), r"-\frac{7}{3}": (r"-2.\overline{3}",
        "－7/3"),
        "3.14": ("3,14",), r"3.5\times 10^{8}": ("3.5×10⁸", "350 million", "3,5·10^8"), "10^{100}": ("1e100",),
        "-3": ("minus 3",),
        "2:3": ("2：3", "2 to 3", r"2\colon 3"), r"\pm 3": ("+/-3", "3和-3"), "2.5": ("2½",),
    },
    "values": {
        "1024": (r"2^{10}", "4^5", "2^{10} = 1024"), "120": ("5!", r"2^3 \cdot 3 \cdot 5"),
        r"\binom{10}{3}": (r"{10 \choose 3}", "120"),
        "27": ("3^3", "22 + 5", r"54 \div 2", r"3 \cdot 9"), "2.236068": (r"\sqrt{5}",),
        "1/36": (r"\left(\frac{1}{6}\right)^2",),
        r"\sum_{k=1}^{n} k^2": (r"\sum_{k=1}^{n} k^2",), r"2\ln 2": (r"\ln 4",),
        r"\frac{3}{2}\sin 2x": (r"3\sin x\cos x",),
    },
}  # fmt: skip
RIGHT |= {
    "units above and below": {
        r"12\text{ km/h}": ("12 km per hour", "12 kmh", "12"), "20 m/s": ("72 km/h", "20 m/s"),
        r"9.8\text{ m/s}^2": ("980 cm/s^2", "9.8"), r"60\text{ km/h}": ("1 km/min",), "12 mph": ("12 miles per hour",),
        "18 dollars": ("18 per day", "18/hour", r"\$18/day"), "$18 per day": ("18",), "£18": ("18 pounds", "18 GBP", "18"),
        "5 g/cm^3": ("5 g/cm³",), "1 g/ml": ("1 kg/l",),
    },
    "dates, times and ranges": {
        "2020-05-12": ("2020-5-12", "The date is 2020-05-12."), "12/05/2020": ("12/5/2020", "12.05.2020"),
        "10:00 AM": ("10:00 a.m.", "10 AM", "10:00", r"10:00\text{ a.m.}"), "2:30 PM": ("14:30", "2:30 p.m."),
        "14:30": ("2:30 pm",), "20-30": ("20–30", "20 to 30"), "3-5 days": ("3–5 days", "3-5"), "3:2": ("6:4",), "60:40": ("3:2",),
    },
    "values with names": {
        "(2,3)": ("x=2, y=3", "y=3, x=2", "2 and 3"), "x=3, y=4": ("y=4, x=3", "3, 4", "(3,4)"),
        "(3,4)": ("x_1=3, x_2=4",), r"\left(3,\frac{\pi}{2}\right)": (r"r=3, \theta=\frac{\pi}{2}",),
        "x_1=1, x_2=-2": ("-2, 1",), "(2, 5)": ("m=2, b=5", "r=2, h=5", "f(1)=2, f(2)=5"),
    },
    "several choices": {
        "ACD": ("A, C, D", "A、C、D", "选ACD", "故选：ACD", "A, C and D", "D, C, A"), "A, C": ("AC",),
        "C": ("C is correct", "(C) is the correct answer", "C选项"),
    },
    "substances, roots and grouped digits": {
        "H_2O": ("H2O", r"\ce{H2O}", "H₂O"), "H2O": ("H_2O",), r"\text{NaCl}": (r"\ce{NaCl}",),
        r"\sqrt[3]{4}": ("∛4", r"\sqrt[3]4"), r"\ln 3": (r"\log_e 3",), r"\{x|1<x<3\}": ("{x∣1＜x＜3}",),
        "1234.56": ("1.234,56", "€1.234,56"), "25000000": ("25.000.000",),
    },
    "units of physics": {
        "10": (
            "10 N", "10 J", "10 W", "10 V", "10 A", "10 K", "10 T", "10 C", "10 Hz", "10 Pa", "10 eV", "10 mol", "10 kJ",
            "10 MW", "10 mA", "10 µF", "10 kWh", "10 lbs", "10 Ω", r"10\,\Omega", "10 °C", "10°F", "10 ℃", "10 mL", "10 cm³",
            "10 kg·m/s²", "10kg*m/s^2", "10m/s", "10 m·s^-1", r"10\,\text{m}\,\text{s}^{-1}", r"10\ \mathrm{m\,s^{-1}}",
            r"10 \frac{m}{s}", r"10\,\frac{\text{m}}{\text{s}}", "10 J/(kg K)", r"10\text{ J/(kg}\cdot\text{K)}", "10 N·m",
            "10 meters per second squared", "10 m/s/s", "10 joules", r"10^{\circ}\mathrm{C}", "10 degrees Celsius", "10 [m/s]",
        ),
        "10 N": (r"10\text{ N}", "10", "10N", "10 newtons", r"10\ \text{kg}\cdot\text{m}/\text{s}^2", "10 kg m/s^2", "0.01 kN"),
        "5 kg·m/s²": ("5 N", "5", r"5\text{ kg m/s}^2"), "50 Hz": ("50 hertz", "50 s^{-1}", "0.05 kHz", "50"),
        "20 m/s": ("20 m/sec", "20"), "9.8 m/s^2": ("9.8 m/sec^2", r"9.8\text{ m}\cdot\text{s}^{-2}", "9.8 meters per second squared", "9.8 N/kg", "9.8 m/s²"),
        "25 °C": ("25", "25°C", "25℃", "25 degrees Celsius", r"25^\circ\text{C}", "25 C", "25 degrees"),
        "77 °F": ("77", "77 degrees Fahrenheit", r"77^\circ F", "77℉"), "250 mL": ("250 milliliters", "0.25 L", "250 cm^3"),
        "12 cm³": (r"12\text{ cm}^3", "12 cubic centimeters", "12 cc", "12"), "2 lb": ("32 oz",), "1 year": ("12 months",),
        "5000000": ("5 million dollars", "$5 million"), "50000": ("5万元",), "2x": ("2x cm",), "x^2 + m": ("m + x^2",),
        "3 kWh": ("10800000 J",),
    },
    "quantities of several units": {
        "1.5 hours": (
            "1 hour 30 minutes", "90 minutes", "1 h 30 min", "1 hour and 30 minutes", r"1\text{ hour }30\text{ minutes}",
            "1h30m", "1 hour, 30 minutes", "1小时30分钟", "1時間30分", "1시간 30분", "1 1/2 hours", "5400 seconds",
        ),
        "1 hour 30 minutes": ("1.5 hours", "90 minutes", "1 h 30 min", "1 hour and 30 minutes"),
        "5 feet 6 inches": ("66 inches", "5.5 feet", "5 ft 6 in"), "2.5 kg": ("2 kg 500 g",),
        "$3.25": ("3 dollars and 25 cents", "325 cents", "3.25"),
    },
    "vectors": {
        "(1,2)": (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \\ \end{bmatrix}", r"\langle 1,2\rangle",
        r"\begin{pmatrix}1&2\end{pmatrix}"),
        r"\begin{pmatrix}1\\-\frac12\\3\end{pmatrix}": ("(1,-1/2,3)", "(1, -0.5, 3)", r"v = (1,-\frac{1}{2},3)"),
    },
    "dates with a name of a month": {
        "May 12, 2020": ("12 May 2020", "2020-05-12", "May 12 2020", "12th May 2020", "May 12th, 2020", "2020/5/12",
        "2020年5月12日", "12 may, 2020", "the 12th of May 2020", "The date is May 12, 2020.", "Tuesday, May 12, 2020", r"\text{12 May 2020}"),
        "2020-05-12": ("May 12, 2020", "12 May 2020", "2020年5月12日"), "12 May": ("May 12", "12th of May", "5月12日"),
        "Sept. 3, 1999": ("3 September 1999", "1999-9-3"), "May 2020": ("May, 2020", "2020年5月"),
    },
    "counters": {
        "24": ("24种", "24種方法", "24個", "24名", "24명", "24마리", "24匹", "24本", "24頭", "24つ", "24とおり", "24种不同的选法",
        "24 개", "24인분"),
        "24种": ("24", "24 ways"), "3個": ("3",), "5명": ("5", "5 people"),
    },
    "percents, sets and braces": {
        "3/4": ("75%", "0.75", "75 per cent"), "50": ("50%",), "0.5%": ("0.5", "0.005"), "1": ("100%",),
        r"\{0,1\}": (r"\{1,0\}", "0,1", "0 and 1", "{0,1}"), "{0,1}": (r"\{0,1\}", "1, 0"),
        r"\{1\pm\sqrt{5},-2\}": (r"{\bf \{1\pm\sqrt{5},-2\}}",),
    },
}  # fmt: skip
WRONG: dict[str, Kind] = {
    "rounded whole numbers": {
        "1000000007": (
            r"1.0\times10^9", "1.0e9", "1e9", r"1.00000001\times 10^9", r"10^9", "1 billion", r"1.0\cdot10^9 + 0",
            "1000000006.9999",
            r"\frac{2.0\times10^9}{2}",
        ),
        "123456789": ("1.234568e8", r"123456.8\times10^3"), "10000000000001": ("10000000000000.0", "1e13"),
        "100000000000000000001": ("1.0e20", r"1.0\cdot 10^{20}", r"10^{20}"), "1500000": ("1.5 billion", "15万"),
    },
    "unreadable": {
        r"\frac{3}{4}": (r"\neg\frac34", r"\nexists\frac34", r"\foo\frac34", r"???\frac{3}{4}", r"\frac34\foo",
        r"\left(\frac34", r"\frac34}{"),
        "27": (r"\foo{27}", r"\#27", r"27\cdot", r"\frac{27}{}", r"\cancel{27}", r"\overline{27}", "27'", r"\not=27",
        "28 = 27"),
    },
    "not evaluated": {
        "27": (
            r"\min(27,28)", r"\max(26,27)", r"\gcd(27,54)", r"\operatorname{lcm}(9,27)", r"\int_0^3 3x^2 dx",
            r"\sum_{k=1}^{27} 1",
            r"\prod_{k=1}^{3}3", r"\lim_{x\to 27} x", r"\binom{27}{1}", r"\log_2 2^{27}", r"\sqrt{729}", r"|-27|",
            r"\lfloor 27.5\rfloor",
            r"\det\begin{pmatrix}27\end{pmatrix}", r"17\cdot 2 - 7", "(5+4)*3", "30-3+0", r"\frac{50+4}{2}",
            r"27\sin 90^\circ",
            r"27\sin^2 x+27\cos^2 x", "max(27, 26)", "sum([20, 7])", "C(27,1)",
        ),
        "387": (r"17\cdot23-4",), "9": (r"\int_0^3x^2dx",), "120": (r"\frac{10!}{7!3!}", r"\binom{10}{3}"),
        r"\frac{\sqrt{3}}{2}": (r"\sin 60^\circ", r"\cos\frac{\pi}{6}"), r"\frac{\pi}{4}": (r"\arctan 1",
        r"\int_0^1\frac{1}{1+x^2}dx"),
        r"\sqrt{2}": (r"\max(1,\sqrt2)", r"\int_0^{\sqrt2}1dx"), "2x": (r"\frac{d}{dx}x^2", r"\int 2dx"),
        "x^2+C": (r"\int 2x\,dx + C",),
        "-2": (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}",), r"\frac{n(n+1)}{2}": (r"\sum_{k=1}^n k",),
    },
    "indices": {
        "-3": (r"-3_{5}", "-3_5", r"-3_{\text{five}}", r"-3_{x}"), "27": (r"27_{\text{five}}", "27_x", r"27_{n}"),
        r"\frac{1}{3}": (r"\frac{1}{3}_{5}",), r"\sqrt{2}": (r"\sqrt{2_5}", r"\sqrt{2}_5"), r"3\pi": (r"3_{\pi}",
        r"3\pi_{2}"),
        r"\ln 2": (r"\ln 2_5",), "-43_5": ("-43_6", "43_5"), "11111_2": (r"11111_{\text{three}}", "31"),
    },
    "small numbers": {
        "1e-13": ("2e-13", "0", r"10^{-14}", r"\frac{2}{10^{13}}"), r"\frac{\pi}{10^{13}}": (r"\frac{2\pi}{10^{13}}",
        "0.0", "0"),
        r"10^{-20}x": (r"2\cdot 10^{-20}x", "0"), "0": ("1e-13", r"10^{-100}", "0.0000001"),
    },
    "texts that other parsers read as numbers": {
        "10": ("1_0", "0xA", "0b1010", "0o12"), "5": ("0_5", "0x5", "0b101", "5_", "5L", "5..", "V"),
        "27": ("27...", r"27\ldots", "27_0"),
    },
    "other brackets and sets": {
        r"(2,\infty)": (r"[2,\infty[", r"(2,\infty]", "2, ∞", r"]-\infty,2[", r"\mathbb{R}"), "[0,1)": ("]0,1[",
        "[0;1]", "]0,1]"),
        r"\mathbb{R}": (r"\mathbb{Q}", r"\mathbb{R}\setminus\{1\}", "0"), "1<x<2": ("1>x>2", r"x<1 \text{ or } x>2",
        "]1,3["),
        "(1,2),(3,4)": (r"(1,2)\cup(3,4)", "(1,2)"), r"\emptyset": ("0", r"\{0\}"),
    },
    "choices": {
        "C": (
            "D. 12", "(C) or (D)", "C or D", "C, D", "D: C", "(C) 12, (D) 13", "C. 12 or D. 13", "C/D", "C-D", "C+1",
            "C_{1}", "C'",
            "not C", "C. 12 or D", "选CD", "不选C", r"\textbf{(D)}\ C", "(C)(D)", "C x",
        ),
    },
    "what is taken back or unsure": {
        "27": (
            "27 is wrong; it is 28", "27. No, 28.", "It is 27. Wait, it is 28.", "I don't know if it is 27",
            "The answer isn't 27",
            "不是27", "答案不是27", "27ではない", "no es 27", "27, no wait, 28", "27 or 28", "27 (not 28)", "27 (wrong)", "27. Maybe 28.",
            "27 hundredths", "27 Millionen", "27 lakh",
        ),
        "20": ("20-30", "20 to 30", "20以上", "#### 21", "20 nine", "20万"),
    },
    "other letters, signs and kinds": {
        r"\frac{a}{b}": (r"\frac{A}{b}",), "5-i": ("5-2j", "5+1j", "5-1k"), "3.14": ("314", "3, 14"), "27": ("27:1",
        "270%", "27‰", "2,7"),
        "35\\%": ("3.5%", "35‰"), r"0.\overline{3}": ("0.3", r"0.\overline{03}"),
    },
}  # fmt: skip
WRONG |= {
    "other units above and below": {
        r"12\text{ km/h}": ("12 mph", "12 km/min", "12 m/h"), "40 mph": ("40 km/h", "40 feet per second"),
        "$18 per day": ("$18 per hour",), "3 dollars per pound": ("3 dollars per kg",), "9.8 m/s^2": ("98 cm/s^2",),
        "18 dollars": ("£18", "18 CHF"), "18 euros": ("18 GBP",), "18 GBP": ("18 USD",),
    },
    "other dates, times and ranges": {
        "2020-05-12": ("2020-12-05", "2003", "2020"), "12/05/2020": ("05/12/2020",), "12.05.2020": ("05.12.2020",),
        "3-5": ("-2", "3", "5-3"), "555-1234": ("-679",), "1-0": ("1", "0-1"), "10:00 AM": ("10:00 PM", "10", "22:00"),
        "50-60%": ("-10%", "-10"), "3-5 days": ("-2 days", "-2"), "12 May": ("12",),
        "2:30": ("1:15", "2/30", "14:30"), "2:30 AM": ("14:30",),
    },
    "values of other names": {
        "(2,3)": ("x=2 or x=3", "x=2, x=3", "2 or 3", "y=2, x=3", "x=3, y=2"), "x=3, y=4": ("4, 3", "x=4, y=3"),
    },
    "other choices": {
        "ACD": ("A, C", "A, C, D, E", "A or C or D", "A, C, not D", "not ACD", "A, A, C, D"),
        "BAD": ("A, B, D",), "C": ("C is incorrect", "A or C is correct", "D选项", "D is correct"),
    },
    "other substances, roots and numbers": {
        "H_2O": ("H_2O_2", "HO_2", "H2"), "AB": ("A_B",), r"\sqrt[3]{4}": (r"\sqrt[4]3",), "1000": ("1.000",),
        r"\log_2 3": (r"\log_e 3",), "3.456": ("3,456",),
    },
    "other units of physics": {
        "10 N": ("10 J", "10 kg", "10 kN", "10 N/m", "11 N", "10 N·m"), "10 J": ("10 W", "10 kJ"), "10 MW": ("10 mW", "10 kW"),
        "50 Hz": ("50 s", "50 kHz"), "25 °C": ("25 °F", "77 °F", "25 K", "298.15 K"), "10 V": ("10 A", "10 mV"),
        "9.8 m/s^2": ("9.8 m/s", "9.8 m", "9.8 m/s^3", "9.8 km/s^2"), "12 cm³": ("12 cm²", "12 m^3", "12 kg"),
        "250 mL": ("250 L", "250 g"), "5 kWh": ("5 kW",), "5 g/cm^3": ("5 g",), "5 acres": ("5 hectares",),
        "12 km/h": ("12 km", "12 h", "12 km/s", "12 km^2"), "12 km": ("12 km/h", "12 per km", "12 per hour"),
        "12 m/s": ("12 m", "12 s"), "3 m n": ("3",), "2 g h": ("2",), "27": ("27m", "27N", "27m^2", "27 squared", "27 cubed", "27/s", r"27\cdot", "3 mn"),
        "50%": ("50 km",), "$36": ("36 cents",), "30分": ("30秒",), "3元": ("3角",),
    },
    "other quantities of several units": {
        "1.5 hours": ("1 hour 50 minutes", "1 hour 5 minutes", "30 minutes 1 hour", "1 hour", "1 hour or 30 minutes"),
        "1 hour 30 minutes": ("1 hour", "30 minutes", "1.3 hours", "1 hour 30 seconds", "130", "1 hour 30 dollars"),
        "5 feet 6 inches": ("5.6 feet", "56 inches"),
    },
    "other vectors": {
        "(1,2)": (r"\begin{pmatrix}2\\1\end{pmatrix}", r"\begin{pmatrix}1\\2\\0\end{pmatrix}"),
        r"\begin{pmatrix}1\\2\end{pmatrix}": ("(2,1)", "(1,2,0)", r"\{1,2\}", r"\begin{pmatrix}1&2\end{pmatrix}", "(1,2]"),
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": ("(1,2,3,4)",),
    },
    "other dates with a name of a month": {
        "May 12, 2020": ("12 May 2021", "2020-12-05", "June 12, 2020", "May 12", "May 2020", "12", "2020", "12, 2020"),
        "2020-05-12": ("December 5, 2020",), "12 May": ("12 June", "May", "12", "12 May 2020"), "May 2020": ("2020", "May 2021"),
    },
    "what changes a number, and no counters": {
        "24": ("24万", "24以上", "24多", "24千", "24割", "24个半", "24未満", "24이상", "24여 명", "24ではない", "24人以上", "24人中"),
    },
    "other percents, sets and brackets": {
        "3/4": ("0.75%", r"\frac34\%"), "0.75": ("0.75%",), "0.5%": ("1/2", "50"), r"\{0,1\}": ("(0,1)", "[0,1]", "(1,0)"),
        "{0,1}": ("(0,1)", "[0,1]"), "(0,1)": (r"\{0,1\}", "{0,1}"),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def equal() -> Equal:
    return equality()


def missed(equal: Equal, kind: Kind, *, same: bool) -> list[tuple[str, str]]:
    return [(gold, answer) for gold, answers in kind.items() for answer in answers if equal(answer, gold) is not same]


@pytest.mark.parametrize("kind", RIGHT)
def test_right_answers_are_accepted_however_they_are_written(equal: Equal, kind: str) -> None:
    assert missed(equal, RIGHT[kind], same=True) == []


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_answers_are_not_accepted_however_they_are_written(equal: Equal, kind: str) -> None:
    assert missed(equal, WRONG[kind], same=False) == []


@pytest.mark.parametrize(
    "gold", ["2, 4, 6, \\ldots", "\\min(a, b)", "C_1", "N/A", "12 May", "f(x)=\\sin x, x=0", "{", "①"]
)
def test_whatever_is_accepted_is_right_as_it_stands(equal: Equal, gold: str) -> None:
    assert equal(gold, gold)
    assert equal(rf"\boxed{{{gold}}}", gold) or "{" in gold


def test_the_kinds_have_hundreds_of_answers() -> None:
    assert sum(len(answers) for kinds in (RIGHT, WRONG) for kind in kinds.values() for answers in kind.values()) >= 300


@pytest.mark.parametrize("text", ["<think></think>", "<b> </b>", "**<i></i>**"])
def test_an_element_with_nothing_in_it_is_no_answer(text: str) -> None:
    assert bare(text) == expression_of(text) == ""
