//! Expressions of specifications: `arg1 * arg2`, `*arg0.i32`, `ret == 0`, `strlen(arg1) + 1`.

use std::iter::Peekable;

use rftrace_format::specification::{MAX_DEPTH, MAX_PARAMETERS, Operation, Step, Width};

/// Values known at the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// The arguments: the function is called.
    Early,
    /// The function's result, too.
    Late,
}

/// The most characters of an expression.
const MAX_BYTES: usize = 1024;
/// How deep parentheses may be within each other.
const MAX_NESTED: usize = 32;

/// A word of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Number(u64),
    Name(String),
    Sign(&'static str),
}

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
            Self::Sign(sign) => f.write_str(sign),
        }
    }
}

/// The longer ones first.
const SIGNS: [&str; 14] = ["==", "!=", "<=", ">=", "&&", "||", "<", ">", "+", "-", "*", "(", ")", "."];

/// The steps of an expression. Errors are in words.
pub(super) fn compile(text: &str, wants: Wants) -> Result<Vec<u8>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("the expression is longer than {MAX_BYTES} bytes"));
    }
    let mut parser = Parser { words: words(text)?.into_iter().peekable(), steps: Vec::new(), wants, nested: 0 };
    parser.either()?;
    if let Some(word) = parser.words.next() {
        return Err(format!("unexpected `{word}` after the expression"));
    }
    let (mut depth, mut code) = (0usize, Vec::new());
    for step in parser.steps {
        depth = depth + 1 - step.takes();
        if depth > MAX_DEPTH {
            return Err("the expression is too long: simplify it".to_owned());
        }
        step.encode(&mut code);
    }
    Ok(code)
}

fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        if first.is_ascii_digit() {
            let digits = &rest[..end];
            let number = match digits.strip_prefix("0x") {
                Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16),
                None => digits.parse(),
            };
            found.push(Word::Number(number.map_err(|_| format!("`{digits}` is not a 64-bit number"))?));
            rest = &rest[end..];
        } else if end > 0 {
            found.push(Word::Name(rest[..end].to_owned()));
            rest = &rest[end..];
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
            let sign = sign.ok_or_else(|| format!("unknown character `{first}`"))?;
            found.push(Word::Sign(sign));
            rest = &rest[sign.len()..];
        }
        rest = rest.trim_start();
    }
    Ok(found)
}

struct Parser<I: Iterator<Item = Word>> {
    words: Peekable<I>,
    steps: Vec<Step>,
    wants: Wants,
    nested: usize,
}

impl<I: Iterator<Item = Word>> Parser<I> {
    /// Takes one of these signs.
    fn sign(&mut self, signs: &[&str]) -> Option<&'static str> {
        let found = match self.words.peek() {
            Some(&Word::Sign(sign)) if signs.contains(&sign) => sign,
            _ => return None,
        };
        self.words.next();
        Some(found)
    }

    fn either(&mut self) -> Result<(), String> {
        self.both()?;
        while self.sign(&["||"]).is_some() {
            self.both()?;
            self.steps.push(Step::Operate(Operation::Or));
        }
        Ok(())
    }

    fn both(&mut self) -> Result<(), String> {
        self.comparison()?;
        while self.sign(&["&&"]).is_some() {
            self.comparison()?;
            self.steps.push(Step::Operate(Operation::And));
        }
        Ok(())
    }

    fn comparison(&mut self) -> Result<(), String> {
        self.sum()?;
        let Some(sign) = self.sign(&["==", "!=", "<", "<=", ">", ">="]) else { return Ok(()) };
        self.sum()?;
        // More is not at most.
        let (operation, is_inverted) = match sign {
            "==" => (Operation::Equal, false),
            "!=" => (Operation::Unequal, false),
            "<" => (Operation::Less, false),
            "<=" => (Operation::AtMost, false),
            ">" => (Operation::AtMost, true),
            _ => (Operation::Less, true),
        };
        self.steps.push(Step::Operate(operation));
        if is_inverted {
            self.steps.extend([Step::Number(0), Step::Operate(Operation::Equal)]);
        }
        Ok(())
    }

    fn sum(&mut self) -> Result<(), String> {
        self.product()?;
        while let Some(sign) = self.sign(&["+", "-"]) {
            self.product()?;
            self.steps.push(Step::Operate(if sign == "+" { Operation::Add } else { Operation::Subtract }));
        }
        Ok(())
    }

    fn product(&mut self) -> Result<(), String> {
        self.one()?;
        while self.sign(&["*"]).is_some() {
            self.one()?;
            self.steps.push(Step::Operate(Operation::Multiply));
        }
        Ok(())
    }

    fn one(&mut self) -> Result<(), String> {
        self.nested += 1;
        if self.nested > MAX_NESTED {
            return Err("the expression is nested too deeply: simplify it".to_owned());
        }
        if self.sign(&["*"]).is_some() {
            self.value()?;
            let width = self.width()?.unwrap_or(Width::Word);
            self.steps.push(Step::Load(width));
        } else if self.sign(&["-"]).is_some() {
            self.steps.push(Step::Number(0));
            self.one()?;
            self.steps.push(Step::Operate(Operation::Subtract));
        } else {
            self.value()?;
            if let Some(width) = self.width()? {
                self.steps.push(Step::Cut(width));
            }
        }
        self.nested -= 1;
        Ok(())
    }

    /// The width of a value, if it is given.
    fn width(&mut self) -> Result<Option<Width>, String> {
        if self.sign(&["."]).is_none() {
            return Ok(None);
        }
        let word = self.words.next();
        let found = Width::ALL.into_iter().find(|(_, name)| matches!(&word, Some(Word::Name(word)) if word == name));
        let names: Vec<&str> = Width::ALL.iter().map(|(_, name)| *name).collect();
        let (width, _) = found.ok_or_else(|| format!("no such width after `.`; use one of {}", names.join(", ")))?;
        Ok(Some(width))
    }

    fn value(&mut self) -> Result<(), String> {
        const KNOWN: &str = "a number, arg0 to arg15, ret, strlen(…) or wcslen(…)";
        match self.words.next() {
            None => return Err(format!("a value is missing at the end; use {KNOWN}")),
            Some(Word::Number(number)) => self.steps.push(Step::Number(number)),
            Some(Word::Sign("(")) => {
                self.either()?;
                self.close()?;
            }
            Some(Word::Sign("*")) => {
                self.value()?;
                self.steps.push(Step::Load(Width::Word));
            }
            Some(Word::Name(name)) if name == "ret" => {
                if self.wants == Wants::Early {
                    return Err("`ret` has no value before the function returns".to_owned());
                }
                self.steps.push(Step::Result);
            }
            Some(Word::Name(name)) if ["strlen", "wcslen"].contains(&name.as_str()) => {
                if self.sign(&["("]).is_none() {
                    return Err(format!("{name} needs an argument, as in `{name}(arg0)`"));
                }
                self.either()?;
                self.close()?;
                self.steps.push(if name == "strlen" { Step::TextLength } else { Step::WideLength });
            }
            Some(Word::Name(name)) => {
                let number = name.strip_prefix("arg").and_then(|number| number.parse::<u8>().ok());
                let number = number.filter(|&number| number < MAX_PARAMETERS);
                let number = number.ok_or_else(|| format!("no such value `{name}`; use {KNOWN}"))?;
                self.steps.push(Step::Argument(number));
            }
            Some(other) => return Err(format!("`{other}` in place of a value; use {KNOWN}")),
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        self.sign(&[")"]).map(|_| ()).ok_or_else(|| "a `)` is missing".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates an expression: arguments are 10, 11, …, the result is 99, and the value at an address is its double.
    fn value(text: &str) -> u64 {
        let code = compile(text, Wants::Late).unwrap();
        let (mut rest, mut values) = (code.as_slice(), Vec::new());
        while let Some((step, behind)) = Step::decode(rest) {
            rest = behind;
            let value = match step {
                Step::Number(number) => number,
                Step::Argument(number) => 10 + u64::from(number),
                Step::Result => 99,
                Step::Load(width) => width.cut(2 * values.pop().unwrap()),
                Step::Cut(width) => width.cut(values.pop().unwrap()),
                Step::Operate(operation) => {
                    let second = values.pop().unwrap();
                    operation.of(values.pop().unwrap(), second)
                }
                Step::TextLength | Step::WideLength => values.pop().unwrap() + 1000,
            };
            values.push(value);
        }
        assert!(rest.is_empty() && values.len() == 1, "{text}: {rest:?}, {values:?}");
        values[0]
    }

    #[test]
    fn expressions_have_values() {
        for (text, expected) in [
            ("7", 7),
            ("0x1F", 31),
            ("arg0", 10),
            ("arg1 * arg2 + 1", 133),
            ("1 + arg1*arg2", 133),
            ("2*(arg0-3)", 14),
            ("ret == 0", 0),
            ("ret == 99 && arg0 > 9", 1),
            ("ret < 0 || ret >= 100", 0),
            ("-1", u64::MAX),
            ("ret == -1", 0),
            ("*arg0", 20),
            ("*arg1 * *arg2", 22 * 24),
            ("**arg0", 40),
            ("*(arg0 + 4).i32", 28),
            ("(0 - 1).u8", 255),
            ("wcslen(arg0) * 4", 4040),
            ("strlen(ret) - 99", 1000),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in [
            "",
            "arg",
            "arg16",
            "ret ret",
            "1 +",
            "(1",
            "1)",
            "a",
            "strlen",
            "strlen()",
            "arg0.f32",
            "1 % 2",
            "99999999999999999999",
        ] {
            assert!(compile(text, Wants::Late).is_err(), "{text}");
        }
        assert!(compile("ret", Wants::Early).is_err());
        assert!(compile(&"(".repeat(1000), Wants::Late).is_err());
        assert!(compile(&format!("{}1", "-".repeat(1000)), Wants::Late).is_err());
        assert!(compile(&format!("{}1{}", "(1+".repeat(30), ")".repeat(30)), Wants::Late).is_err());
        assert!(compile(&"*".repeat(900), Wants::Late).is_err());
    }
}
