//! `-o`: the output formats of the commands.

use clap::{ArgMatches, Args, ValueEnum};
use criswitch_config::Problems;
use criswitch_cri::codec::admin::Problem;
use serde_json::{Value as Json, json};

use crate::terminal::SafeText;

/// The version of the JSON and YAML schema. It increases when a field is removed or changes its meaning.
const SCHEMA: u32 = 1;

/// A format of a list.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object.
    Json,
    /// One YAML document.
    Yaml,
    /// Tables with more columns.
    Wide,
    /// One name per line.
    Name,
}

/// A format that programs read.
#[expect(missing_docs, reason = "the help would show a comment of each format")]
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    Json,
    Yaml,
}

/// The format of a command's output.
#[derive(Args)]
pub struct Output<F = Encoding>
where
    F: ValueEnum + Clone + Send + Sync + 'static,
{
    /// Output format.
    #[arg(
        id = "output",
        short,
        long,
        value_name = "FORMAT",
        conflicts_with = "json"
    )]
    format: Option<F>,
    /// Print JSON, as -o json does.
    #[arg(long)]
    json: bool,
}

/// The output formats of a command that prints a list: JSON, YAML, `wide` and `name`.
pub type ListOutput = Output<Format>;

impl Output {
    /// The encoding that the user has selected; `None` for text.
    pub fn encoding(&self) -> Option<Encoding> {
        self.format.or(self.json.then_some(Encoding::Json))
    }
}

impl ListOutput {
    /// The encoding that the user has selected; `None` for text.
    pub fn encoding(&self) -> Option<Encoding> {
        match self.format {
            Some(Format::Json) => Some(Encoding::Json),
            Some(Format::Yaml) => Some(Encoding::Yaml),
            _ => self.json.then_some(Encoding::Json),
        }
    }

    /// Whether the user has selected `-o wide`: tables with more columns.
    pub fn is_wide(&self) -> bool {
        self.format == Some(Format::Wide)
    }

    /// Whether the user has selected `-o name`: one name on each line.
    pub fn is_names(&self) -> bool {
        self.format == Some(Format::Name)
    }
}

impl Encoding {
    /// The encoding that the arguments of a command or of its subcommand select; `None` for text, or if the command has
    /// no [`Output`] arguments.
    pub fn of(arguments: &ArgMatches) -> Option<Encoding> {
        if let Some((_, arguments)) = arguments.subcommand() {
            return Encoding::of(arguments);
        }
        if let Ok(Some(true)) = arguments.try_get_one("json") {
            return Some(Encoding::Json);
        }
        let format = arguments.try_get_raw("output").ok()??.next()?;
        Encoding::from_str(format.to_str()?, false).ok()
    }

    /// Encodes the object as one document, with the schema version and a list of problems. The text ends with a
    /// newline.
    pub fn document(self, object: Json) -> anyhow::Result<SafeText> {
        Ok(match self {
            Encoding::Json => format!("{:#}\n", with_schema(object)).into(),
            Encoding::Yaml => serde_saphyr::to_string(&with_schema(object))?.into(),
        })
    }

    /// Encodes the object as one item of a stream, with the same fields as [`Encoding::document`]: JSON on one line, or
    /// YAML after the separator `---`.
    pub fn item(self, object: Json) -> anyhow::Result<SafeText> {
        Ok(SafeText::from(match self {
            Encoding::Json => format!("{}\n", with_schema(object)),
            Encoding::Yaml => format!("---\n{}", serde_saphyr::to_string(&with_schema(object))?),
        }))
    }
}

/// Adds the schema version, and an empty list of problems if the object has none. Removes fields without a value.
fn with_schema(mut object: Json) -> Json {
    remove_nulls(&mut object);
    if let Some(fields) = object.as_object_mut() {
        fields.insert("schema".to_owned(), json!(SCHEMA));
        fields.entry("problems").or_insert_with(|| json!([]));
    }
    object
}

/// Removes the fields without a value.
pub fn remove_nulls(value: &mut Json) {
    match value {
        Json::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Json::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// The names as text, one on each line.
pub fn name_lines<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    names
        .into_iter()
        .map(|name| name.as_ref().to_owned() + "\n")
        .collect()
}

/// The object that a command prints when it fails.
pub fn failure(error: &anyhow::Error) -> Json {
    let Some(problems) = error.downcast_ref::<Problems>() else {
        return json!({ "problems": [problem(&format!("{error:#}"))] });
    };
    let shown: Vec<_> = problems.iter().map(|it| it.message()).collect();
    json!({ "moreProblems": problems.len().saturating_sub(shown.len()), "problems": shown })
}

/// A problem that has no position in a file, as JSON.
pub fn problem(what: &str) -> Json {
    json!(Problem {
        what: what.to_owned(),
        ..Problem::default()
    })
}
